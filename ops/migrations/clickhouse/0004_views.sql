-- What analysts ask for. Each view has as many rows as the table that it starts from: the joins are ANY LEFT JOIN.

CREATE VIEW IF NOT EXISTS turns AS
SELECT
    c.tenant AS tenant, c.session AS session, c.turn_index AS turn_index, c.turn_id AS turn_id,
    c.event_time AS event_time, c.record_time AS record_time,
    a.model AS model, a.policy_version AS policy_version, a.`user` AS `user`,
    a.response_text AS response_text, a.call_names AS call_names, a.call_arguments AS call_arguments, a.reasoning AS reasoning,
    a.finish_reason AS finish_reason, a.input_tokens AS input_tokens, a.output_tokens AS output_tokens, a.cost_usd AS cost_usd,
    c.close_reason AS close_reason,
    c.next_state_kinds AS next_state_kinds, arrayStringConcat(c.next_state_texts, '\n') AS next_state_text,
    c.outcome AS outcome, c.feedbacks AS feedbacks,
    j.score AS score, j.mean_vote AS mean_vote, j.step_reward AS step_reward, j.judge AS judge, j.reason AS verdict_reason, j.votes AS votes,
    h.hint AS hint, h.finder AS finder, n.reason AS no_hint_reason,
    s.sample_kind AS sample_kind, s.reward AS sample_reward, s.tokens AS sample_tokens, s.event_id AS sample_id,
    k.reason AS skip_reason
FROM turn_closed AS c
ANY LEFT JOIN action_taken AS a ON a.tenant = c.tenant AND a.session = c.session AND a.event_id = c.turn_id
ANY LEFT JOIN turn_judged AS j ON j.tenant = c.tenant AND j.session = c.session AND j.turn_id = c.turn_id
ANY LEFT JOIN hint_selected AS h ON h.tenant = c.tenant AND h.session = c.session AND h.turn_id = c.turn_id
ANY LEFT JOIN hint_absent AS n ON n.tenant = c.tenant AND n.session = c.session AND n.turn_id = c.turn_id
ANY LEFT JOIN sample_assembled AS s ON s.tenant = c.tenant AND s.session = c.session AND s.turn_id = c.turn_id
ANY LEFT JOIN turn_skipped AS k ON k.tenant = c.tenant AND k.session = c.session AND k.turn_id = c.turn_id
SETTINGS join_use_nulls = 1
COMMENT 'One row a closed turn: what the policy did, what the world answered, the verdict, the hint, and the sample or why there is none';

CREATE VIEW IF NOT EXISTS sessions AS
SELECT
    c.tenant AS tenant, c.session AS session, count() AS turns,
    min(c.event_time) AS first_time, max(c.event_time) AS last_time,
    countIf(j.score = 1) AS good, countIf(j.score = -1) AS bad, countIf(j.score = 0) AS neutral,
    avg(j.score) AS mean_score, any(c.outcome) AS outcome, max(c.close_reason = 'session_ended') AS ended
FROM turn_closed AS c
ANY LEFT JOIN turn_judged AS j ON j.tenant = c.tenant AND j.session = c.session AND j.turn_id = c.turn_id
GROUP BY tenant, session
SETTINGS join_use_nulls = 1
COMMENT 'One row a session: how many turns, how they were judged, the outcome';

CREATE VIEW IF NOT EXISTS conversations AS
SELECT
    l.tenant AS tenant, l.session AS session, l.turn_id AS turn_id, l.turn_kind AS turn_kind, l.event_time AS event_time,
    l.position AS position, l.is_response AS is_response, m.role AS role, m.name AS name, m.text AS text, m.reasoning AS reasoning,
    m.call_names AS call_names, m.call_arguments AS call_arguments, m.tool_call_id AS tool_call_id, l.hash AS hash
FROM
(
    SELECT
        tenant, session, event_id AS turn_id, turn_kind, event_time, position, hash, position = length(context_hashes) + 1 AS is_response
    FROM action_taken
    ARRAY JOIN
        arrayPushBack(context_hashes, response_hash) AS hash,
        arrayEnumerate(arrayPushBack(context_hashes, response_hash)) AS position
) AS l
ANY LEFT JOIN messages AS m ON m.tenant = l.tenant AND m.hash = l.hash
COMMENT 'One row a message of an action: those that its event holds, in order, the response last. An action with a parent turn holds only what was added';

CREATE VIEW IF NOT EXISTS rewards AS
SELECT
    c.tenant AS tenant, toDate(coalesce(c.event_time, c.record_time)) AS day, a.model AS model,
    ifNull(a.policy_version, '') AS policy_version,
    count() AS turns, countIf(j.score = 1) AS good, countIf(j.score = -1) AS bad, countIf(j.score = 0) AS neutral,
    countIf(j.score IS NULL) AS unjudged, avg(j.score) AS mean_score, avg(j.step_reward) AS mean_step_reward, avg(c.outcome) AS mean_outcome
FROM turn_closed AS c
ANY LEFT JOIN action_taken AS a ON a.tenant = c.tenant AND a.session = c.session AND a.event_id = c.turn_id
ANY LEFT JOIN turn_judged AS j ON j.tenant = c.tenant AND j.session = c.session AND j.turn_id = c.turn_id
GROUP BY tenant, day, model, policy_version
SETTINGS join_use_nulls = 1
COMMENT 'Verdicts by day, model and policy version (empty: a model of somebody else)';

CREATE VIEW IF NOT EXISTS judge_agreement AS
SELECT
    v.tenant AS tenant, v.judge AS judge, count() AS votes, countIf(v.vote IS NOT NULL) AS valid_votes,
    countIf(v.vote = j.score) / countIf(v.vote IS NOT NULL AND j.score IS NOT NULL) AS with_verdict,
    countIf(sign(f.score) = v.vote) / countIf(v.vote IS NOT NULL AND f.score IS NOT NULL) AS with_feedback,
    countIf(v.vote IS NOT NULL AND f.score IS NOT NULL) AS compared_with_feedback
FROM vote_cast AS v
ANY LEFT JOIN turn_judged AS j ON j.tenant = v.tenant AND j.session = v.session AND j.turn_id = v.turn_id
ANY LEFT JOIN (SELECT tenant, session, assumeNotNull(turn_id) AS turn_id, score FROM feedback_given WHERE turn_id IS NOT NULL AND score IS NOT NULL) AS f
    ON f.tenant = v.tenant AND f.session = v.session AND f.turn_id = v.turn_id
GROUP BY tenant, judge
SETTINGS join_use_nulls = 1
COMMENT 'How often each judge votes as the verdict came out, and as people said';

CREATE VIEW IF NOT EXISTS staleness AS
SELECT
    u.tenant AS tenant, u.`update` AS `update`, u.sample_id AS sample_id, s.policy_version AS sampled_by,
    if(s.policy_version = 'base', 0, p.`update`) AS sampled_by_update,
    toInt64(u.`update`) - 1 - toInt64(if(s.policy_version = 'base', 0, p.`update`)) AS staleness
FROM (SELECT tenant, `update`, arrayJoin(sample_ids) AS sample_id FROM update_started) AS u
ANY LEFT JOIN sample_assembled AS s ON s.event_id = u.sample_id
ANY LEFT JOIN (SELECT toString(event_id) AS version, `update` FROM policy_published) AS p ON p.version = s.policy_version
SETTINGS join_use_nulls = 1
COMMENT 'One row a trained sample: how many policy versions lie between sampling and training';

CREATE VIEW IF NOT EXISTS feedback AS
SELECT f.tenant AS tenant, f.session AS session, f.turn_id AS turn_id, f.event_time AS event_time, f.score AS feedback_score, f.text AS text,
    f.correction AS correction, f.`user` AS `user`, j.score AS verdict_score, j.judge AS judge
FROM feedback_given AS f
ANY LEFT JOIN turn_judged AS j ON j.tenant = f.tenant AND j.session = f.session AND j.turn_id = f.turn_id
SETTINGS join_use_nulls = 1
COMMENT 'Explicit feedback beside the verdict of its turn';

CREATE VIEW IF NOT EXISTS dead_letters AS
SELECT event_id, record_time, stage, reason, origin_topic, origin_partition, origin_offset, origin_file, origin_line, tenant, session,
    length(value) AS value_bytes, truncated
FROM dead_lettered
COMMENT 'Records that a stage could not take; the bytes are in dead_lettered.value';

CREATE VIEW IF NOT EXISTS freshness AS
SELECT topic, partition, count() AS records, min(offset) AS first_offset, max(offset) AS last_offset,
    max(record_time) AS newest_record, max(ingest_time) AS newest_ingest
FROM events
GROUP BY topic, partition
COMMENT 'How far the history reaches in each partition of each topic';

CREATE VIEW IF NOT EXISTS audit AS
SELECT 'events' AS table, count() AS rows, uniqExact(topic, partition, offset) AS places, uniqExact(event_id) AS ids FROM events
UNION ALL
SELECT 'action_taken' AS table, count() AS rows, uniqExact(topic, partition, offset) AS places, uniqExact(event_id) AS ids FROM action_taken
UNION ALL
SELECT 'next_state_observed' AS table, count() AS rows, uniqExact(topic, partition, offset) AS places, uniqExact(event_id) AS ids FROM next_state_observed
UNION ALL
SELECT 'feedback_given' AS table, count() AS rows, uniqExact(topic, partition, offset) AS places, uniqExact(event_id) AS ids FROM feedback_given
UNION ALL
SELECT 'outcome_reported' AS table, count() AS rows, uniqExact(topic, partition, offset) AS places, uniqExact(event_id) AS ids FROM outcome_reported
UNION ALL
SELECT 'session_ended' AS table, count() AS rows, uniqExact(topic, partition, offset) AS places, uniqExact(event_id) AS ids FROM session_ended
UNION ALL
SELECT 'turn_closed' AS table, count() AS rows, uniqExact(topic, partition, offset) AS places, uniqExact(event_id) AS ids FROM turn_closed
UNION ALL
SELECT 'vote_cast' AS table, count() AS rows, uniqExact(topic, partition, offset) AS places, uniqExact(event_id) AS ids FROM vote_cast
UNION ALL
SELECT 'turn_judged' AS table, count() AS rows, uniqExact(topic, partition, offset) AS places, uniqExact(event_id) AS ids FROM turn_judged
UNION ALL
SELECT 'hint_vote_cast' AS table, count() AS rows, uniqExact(topic, partition, offset) AS places, uniqExact(event_id) AS ids FROM hint_vote_cast
UNION ALL
SELECT 'teacher_scored' AS table, count() AS rows, uniqExact(topic, partition, offset) AS places, uniqExact(event_id) AS ids FROM teacher_scored
UNION ALL
SELECT 'hint_selected' AS table, count() AS rows, uniqExact(topic, partition, offset) AS places, uniqExact(event_id) AS ids FROM hint_selected
UNION ALL
SELECT 'hint_absent' AS table, count() AS rows, uniqExact(topic, partition, offset) AS places, uniqExact(event_id) AS ids FROM hint_absent
UNION ALL
SELECT 'sample_assembled' AS table, count() AS rows, uniqExact(topic, partition, offset) AS places, uniqExact(event_id) AS ids FROM sample_assembled
UNION ALL
SELECT 'turn_skipped' AS table, count() AS rows, uniqExact(topic, partition, offset) AS places, uniqExact(event_id) AS ids FROM turn_skipped
UNION ALL
SELECT 'update_started' AS table, count() AS rows, uniqExact(topic, partition, offset) AS places, uniqExact(event_id) AS ids FROM update_started
UNION ALL
SELECT 'policy_published' AS table, count() AS rows, uniqExact(topic, partition, offset) AS places, uniqExact(event_id) AS ids FROM policy_published
UNION ALL
SELECT 'policy_rolled_back' AS table, count() AS rows, uniqExact(topic, partition, offset) AS places, uniqExact(event_id) AS ids FROM policy_rolled_back
UNION ALL
SELECT 'dead_lettered' AS table, count() AS rows, uniqExact(topic, partition, offset) AS places, uniqExact(event_id) AS ids FROM dead_lettered
COMMENT 'rows and places are equal: nothing was inserted twice. In events, records that could not be decoded share one id';
