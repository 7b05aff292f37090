-- What one asks about evaluations: the runs of the arms, the replies that count, and when each persona was aligned.

CREATE VIEW IF NOT EXISTS evaluation_runs
(
    tenant String COMMENT 'The run: one tenant each',
    arm String COMMENT 'What was varied',
    seed UInt64 COMMENT 'Runs of different arms with one seed are a pair: same problems, same words',
    half String COMMENT 'Which half of the problems: tuning or reporting',
    cap UInt32 COMMENT 'The most sessions',
    personas Array(String) COMMENT 'Who talked to the one policy',
    settings String COMMENT 'JSON of all that the arm sets',
    base_model String COMMENT 'The model that the policy started from',
    outcome Nullable(String) COMMENT 'aligned, sessions (the cap was reached) or time; NULL: the run has not ended',
    sessions Nullable(UInt32) COMMENT 'Joint sessions that were held',
    aligned_at Map(String, UInt32) COMMENT 'What the run itself said about alignment, by persona and joint',
    updates Nullable(UInt32) COMMENT 'Updates of the policy',
    seconds Map(String, Float64) COMMENT 'Wall time by part',
    started_at DateTime64(3, 'UTC') COMMENT 'Record time of the EvaluationStarted'
)
AS SELECT
    s.tenant AS tenant, s.arm AS arm, s.seed AS seed, s.half AS half, s.sessions AS cap, s.personas AS personas, s.settings AS settings,
    s.base_model AS base_model, e.outcome AS outcome, e.sessions AS sessions, e.aligned_at AS aligned_at, e.updates AS updates, e.seconds AS seconds,
    s.record_time AS started_at
FROM evaluation_started AS s
ANY LEFT JOIN
(
    SELECT tenant, toNullable(toString(outcome)) AS outcome, toNullable(sessions) AS sessions, aligned_at, toNullable(updates) AS updates, seconds
    FROM evaluation_ended
) AS e ON e.tenant = s.tenant
COMMENT 'One row a run of an arm of nextstate eval';

CREATE VIEW IF NOT EXISTS evaluation_first_replies
(
    tenant String COMMENT 'The run',
    arm String COMMENT 'What was varied',
    seed UInt64 COMMENT 'Seed of the run',
    persona String COMMENT 'Who judged',
    phase String COMMENT 'live: the policy that learns; control: the base model on the same problem; held_out, held_out_control: after the last session',
    session_index UInt32 COMMENT 'From 1; in the held-out phases, the number of the problem',
    problem String COMMENT 'What was asked',
    reply String COMMENT 'What was answered',
    tokens UInt32 COMMENT 'Length of the reply',
    policy_version String COMMENT 'Who answered',
    update_number Nullable(UInt64) COMMENT 'The update that this version came of; 0: base; NULL: a version that is not in the history',
    complaint String COMMENT 'What the persona did not like',
    guard String COMMENT 'Why the reply does not count whatever its form',
    preference Bool COMMENT 'The persona liked the form',
    guard_passed Bool COMMENT 'The guard let it pass',
    satisfied Bool COMMENT 'Both',
    base_logprob Nullable(Float64) COMMENT 'Mean log-prob of a token under the base model at temperature 1, nats',
    seconds Float64 COMMENT 'How long the reply took',
    event_id UUID COMMENT 'Of the ReplyEvaluated'
)
AS SELECT
    r.tenant AS tenant, r.arm AS arm, r.seed AS seed, r.persona AS persona, r.phase AS phase, r.session_index AS session_index, r.problem AS problem,
    r.reply AS reply, r.tokens AS tokens, r.policy_version AS policy_version, if(r.policy_version = 'base', 0, p.number) AS update_number,
    r.complaint AS complaint, r.guard AS guard, toBool(r.complaint = '') AS preference, toBool(r.guard = '') AS guard_passed, r.satisfied AS satisfied,
    r.base_logprob AS base_logprob, r.seconds AS seconds, r.event_id AS event_id
FROM reply_evaluated AS r
ANY LEFT JOIN (SELECT tenant, toString(event_id) AS version, toNullable(`update`) AS number FROM policy_published) AS p
    ON p.tenant = r.tenant AND p.version = r.policy_version
WHERE r.turn_index = 0
COMMENT 'One row a first reply: the replies that count';

CREATE VIEW IF NOT EXISTS evaluation_alignment
(
    tenant String COMMENT 'The run',
    arm String COMMENT 'What was varied',
    seed UInt64 COMMENT 'Seed of the run',
    persona String COMMENT 'Who; joint: all of the run',
    aligned_at Nullable(UInt32) COMMENT 'The session of the first of three satisfied first replies in a row, joint: the largest of them; NULL: it did not come to that',
    sessions UInt32 COMMENT 'aligned_at, or the cap',
    censored Bool COMMENT 'Not aligned: sessions is the cap, and the true number is larger',
    outcome Nullable(String) COMMENT 'How the run ended; NULL: it has not'
)
AS WITH each AS
(
    SELECT r.tenant AS tenant, r.arm AS arm, r.seed AS seed, r.cap AS cap, r.outcome AS outcome, r.who AS persona,
        arrayFilter(s -> has(f.liked, s + 1) AND has(f.liked, s + 2), f.liked) AS starts,
        if(empty(starts), NULL, toNullable(arrayMin(starts))) AS aligned_at
    FROM (SELECT tenant, arm, seed, cap, outcome, arrayJoin(personas) AS who FROM evaluation_runs) AS r
    ANY LEFT JOIN
    (
        SELECT tenant, toString(persona) AS persona, groupUniqArray(session_index) AS liked
        FROM reply_evaluated WHERE phase = 'live' AND turn_index = 0 AND satisfied GROUP BY tenant, persona
    ) AS f ON f.tenant = r.tenant AND f.persona = r.who
)
SELECT tenant, arm, seed, persona, aligned_at, ifNull(aligned_at, cap) AS sessions, toBool(aligned_at IS NULL) AS censored, outcome
FROM
(
    SELECT tenant, arm, seed, cap, outcome, persona, aligned_at FROM each
    UNION ALL
    SELECT tenant, arm, seed, cap, outcome, 'joint' AS persona, if(countIf(aligned_at IS NULL) > 0, NULL, max(aligned_at)) AS aligned_at
    FROM each GROUP BY tenant, arm, seed, cap, outcome
)
COMMENT 'One row a run and persona, and one for all of them: sessions until the first reply was what the user wants';
