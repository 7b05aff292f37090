-- What one asks about training: each update with its metrics, what each version earned, and how far the teacher is from the student.

ALTER TABLE hint_selected ADD COLUMN IF NOT EXISTS hint_indexes Array(UInt32)
    COMMENT 'token_optimal: the candidate that each token''s row of the teacher is from; empty: all from candidate_index' CODEC(T64, ZSTD(1));

CREATE VIEW IF NOT EXISTS updates
(
    tenant String COMMENT 'Whose samples were trained',
    `update` UInt64 COMMENT 'Number of the update, from 1',
    update_id UUID COMMENT 'Event id of the UpdateStarted',
    parent_version String COMMENT 'The version that was trained on; base: the model without an adapter',
    version Nullable(String) COMMENT 'The version that came of it; NULL: none yet, or the update was skipped',
    samples UInt64 COMMENT 'Samples of the minibatch',
    sample_ids Array(UUID) COMMENT 'Event ids of the SampleAssembled',
    engine String COMMENT 'Which training engine computed it',
    objective String COMMENT 'JSON: the objective and every hyperparameter',
    seed UInt64 COMMENT 'Seed of the update',
    started_at DateTime64(3, 'UTC') COMMENT 'Record time of the UpdateStarted',
    published_at Nullable(DateTime64(3, 'UTC')) COMMENT 'Record time of the PolicyPublished',
    loss Nullable(Float64) COMMENT 'Mean of the samples'' losses, what the gradient is of',
    loss_eval Nullable(Float64) COMMENT 'Evaluative part, mean over tokens, before its weight',
    loss_dir Nullable(Float64) COMMENT 'Directive part, mean over tokens, before its weight',
    kl Nullable(Float64) COMMENT 'KL to the reference, mean over tokens, nats; 0 without a KL term',
    reward_mean Nullable(Float64) COMMENT 'Mean reward of the samples',
    clip_fraction Nullable(Float64) COMMENT 'Tokens whose evaluative surrogate was clipped',
    ratio_mean Nullable(Float64) COMMENT 'Mean importance ratio of the tokens',
    entropy Nullable(Float64) COMMENT 'Mean entropy of the policy at the tokens, nats',
    grad_norm Nullable(Float64) COMMENT 'L2 norm of the gradient before it was clipped',
    learning_rate Nullable(Float64) COMMENT 'Learning rate of this update, after warm-up',
    staleness_mean Nullable(Float64) COMMENT 'Policy versions between sampling and training, mean over samples',
    staleness_max Nullable(Float64) COMMENT 'The same, the largest',
    logprob_gap Nullable(Float64) COMMENT 'Mean |trainer''s log-prob - sampler''s| over tokens, nats; NULL: the sampler gave none',
    logprob_gap_max Nullable(Float64) COMMENT 'The same, the largest',
    importance_weight_mean Nullable(Float64) COMMENT 'Mean truncated importance weight of the tokens',
    teacher_fraction Nullable(Float64) COMMENT 'Samples that have a teacher',
    tokens Nullable(Float64) COMMENT 'Response tokens of the minibatch',
    seconds Nullable(Float64) COMMENT 'How long the update took',
    metrics Map(String, Float64) COMMENT 'All metrics by name; empty: nothing was published',
    peft_sha256 Nullable(String) COMMENT 'The adapter as PEFT safetensors, in the blob store',
    gguf_sha256 Nullable(String) COMMENT 'The adapter as GGUF, in the blob store',
    checkpoint_sha256 Nullable(String) COMMENT 'The adapter with the optimizer''s state, in the blob store'
)
AS WITH (m, name) -> if(mapContains(m, name), m[name], NULL) AS metric
SELECT
    u.tenant AS tenant, u.`update` AS `update`, u.event_id AS update_id, u.parent_version AS parent_version, p.version AS version,
    length(u.sample_ids) AS samples, u.sample_ids AS sample_ids, u.engine AS engine, u.objective AS objective, u.seed AS seed,
    u.record_time AS started_at, p.published_at AS published_at,
    metric(p.metrics, 'loss') AS loss, metric(p.metrics, 'loss_eval') AS loss_eval, metric(p.metrics, 'loss_dir') AS loss_dir, metric(p.metrics, 'kl') AS kl,
    metric(p.metrics, 'reward_mean') AS reward_mean, metric(p.metrics, 'clip_fraction') AS clip_fraction, metric(p.metrics, 'ratio_mean') AS ratio_mean,
    metric(p.metrics, 'entropy') AS entropy, metric(p.metrics, 'grad_norm') AS grad_norm, metric(p.metrics, 'learning_rate') AS learning_rate,
    metric(p.metrics, 'staleness_mean') AS staleness_mean, metric(p.metrics, 'staleness_max') AS staleness_max,
    metric(p.metrics, 'logprob_gap') AS logprob_gap, metric(p.metrics, 'logprob_gap_max') AS logprob_gap_max,
    metric(p.metrics, 'importance_weight_mean') AS importance_weight_mean, metric(p.metrics, 'teacher_fraction') AS teacher_fraction,
    metric(p.metrics, 'tokens') AS tokens, metric(p.metrics, 'seconds') AS seconds, p.metrics AS metrics,
    p.peft_sha256 AS peft_sha256, p.gguf_sha256 AS gguf_sha256, p.checkpoint_sha256 AS checkpoint_sha256
FROM update_started AS u
ANY LEFT JOIN
(
    SELECT update_id, toString(event_id) AS version, record_time AS published_at, metrics, peft_sha256, gguf_sha256, checkpoint_sha256 FROM policy_published
) AS p ON p.update_id = toString(u.event_id)
SETTINGS join_use_nulls = 1
COMMENT 'One row an update of the policy: its parent, its samples, its metrics, the version that came of it';

CREATE VIEW IF NOT EXISTS rewards_by_version
(
    tenant String COMMENT 'Whose turns',
    policy_version String COMMENT 'The version that answered; base: the model without an adapter',
    `update` Nullable(UInt64) COMMENT 'The update that it came of; 0: base; NULL: published elsewhere',
    turns UInt64 COMMENT 'Closed main turns that evaluate has come to: each is judged once, with a score or without',
    sessions UInt64 COMMENT 'Sessions in which it answered',
    good UInt64 COMMENT 'Turns with score 1',
    bad UInt64 COMMENT 'Turns with score -1',
    neutral UInt64 COMMENT 'Turns with score 0',
    unjudged UInt64 COMMENT 'Turns without a score',
    hinted UInt64 COMMENT 'Turns with a hint',
    mean_score Nullable(Float64) COMMENT 'Mean score of the judged turns',
    mean_step_reward Nullable(Float64) COMMENT 'Mean step reward of the turns that have one',
    first_turn DateTime64(3, 'UTC') COMMENT 'When its first turn closed (record time)',
    last_turn DateTime64(3, 'UTC') COMMENT 'When its last turn closed (record time)'
)
AS SELECT
    j.tenant AS tenant, a.version AS policy_version, if(a.version = 'base', 0, any(p.number)) AS `update`,
    count() AS turns, uniqExact(j.session) AS sessions,
    countIf(j.score = 1) AS good, countIf(j.score = -1) AS bad, countIf(j.score = 0) AS neutral, countIf(j.score IS NULL) AS unjudged,
    countIf(j.turn_id IN (SELECT turn_id FROM hint_selected)) AS hinted, avg(j.score) AS mean_score, avg(j.step_reward) AS mean_step_reward,
    min(j.record_time) AS first_turn, max(j.record_time) AS last_turn
FROM turn_judged AS j
ANY INNER JOIN
(
    SELECT event_id, assumeNotNull(policy_version) AS version FROM action_taken WHERE policy_version IS NOT NULL AND turn_kind = 'main'
) AS a ON a.event_id = j.turn_id
ANY LEFT JOIN (SELECT toString(event_id) AS version, `update` AS number FROM policy_published) AS p ON p.version = a.version
GROUP BY tenant, policy_version
SETTINGS join_use_nulls = 1
COMMENT 'One row a policy version that answered: how its turns were judged. Turns of other models are in rewards';

CREATE VIEW IF NOT EXISTS teacher_gap
(
    tenant String COMMENT 'Whose turn',
    session String COMMENT 'Session of the turn',
    turn_id UUID COMMENT 'Event id of the ActionTaken',
    policy_version Nullable(String) COMMENT 'The version that answered: the student',
    teacher_version String COMMENT 'The version that scored: the teacher',
    hint_index UInt32 COMMENT 'Which candidate, shortest first',
    hint String COMMENT 'What the teacher saw and the student did not',
    selected Bool COMMENT 'Whether this hint became the turn''s (token_optimal: that of most tokens)',
    tokens UInt64 COMMENT 'Response tokens',
    temperature Float64 COMMENT 'Of all log-probs here',
    teacher_logprob Nullable(Float64) COMMENT 'Mean log-prob of the response under the hint, nats a token',
    student_logprob Nullable(Float64) COMMENT 'Mean log-prob when it was sampled, nats a token; NULL: the sampler gave none',
    gap Nullable(Float64) COMMENT 'teacher_logprob - student_logprob; below 0: with the hint the response would have been less likely',
    overlap_fraction Nullable(Float64) COMMENT 'Part of the student''s likeliest tokens that are also the teacher''s',
    record_time DateTime64(3, 'UTC') COMMENT 'Of the TeacherScored'
)
AS SELECT
    t.tenant AS tenant, t.session AS session, t.turn_id AS turn_id, a.policy_version AS policy_version, t.teacher_version AS teacher_version,
    t.hint_index AS hint_index, t.hint AS hint, ifNull(h.candidate_index = t.hint_index, false) AS selected,
    length(t.logprobs) AS tokens, t.temperature AS temperature,
    if(empty(t.logprobs), NULL, arrayAvg(t.logprobs)) AS teacher_logprob,
    if(empty(t.logprobs) OR length(ifNull(a.sampled, [])) != length(t.logprobs), NULL, arrayAvg(ifNull(a.sampled, []))) AS student_logprob,
    teacher_logprob - student_logprob AS gap,
    if(empty(t.top_k_ids), NULL, t.overlap / length(t.top_k_ids)) AS overlap_fraction,
    t.record_time AS record_time
FROM teacher_scored AS t
ANY LEFT JOIN (SELECT tenant, session, event_id, policy_version, logprobs_sampled AS sampled FROM action_taken) AS a
    ON a.tenant = t.tenant AND a.session = t.session AND a.event_id = t.turn_id
ANY LEFT JOIN (SELECT tenant, session, turn_id, toNullable(candidate_index) AS candidate_index FROM hint_selected) AS h
    ON h.tenant = t.tenant AND h.session = t.session AND h.turn_id = t.turn_id
SETTINGS join_use_nulls = 1
COMMENT 'One row a hint that the teacher scored: how much more or less likely the response is under it';

-- Counts versions and no longer updates: an update that was skipped made no version.
CREATE OR REPLACE VIEW staleness
(
    tenant String COMMENT 'Whose sample',
    `update` UInt64 COMMENT 'The update that trained it',
    sample_id UUID COMMENT 'Event id of the SampleAssembled',
    sampled_by Nullable(String) COMMENT 'The version that answered',
    sampled_by_update Nullable(UInt64) COMMENT 'The update that it came of; 0: base',
    staleness Nullable(Int64) COMMENT 'Versions published between sampling and training; NULL: the version or the sample is not in the history'
)
AS WITH published AS
(
    SELECT tenant, toString(event_id) AS version, `update`, row_number() OVER (PARTITION BY tenant ORDER BY `update`) AS ordinal FROM policy_published
)
SELECT
    u.tenant AS tenant, u.`update` AS `update`, u.sample_id AS sample_id, s.policy_version AS sampled_by,
    if(s.policy_version = 'base', 0, p.`update`) AS sampled_by_update,
    toInt64(ifNull(before.ordinal, 0)) - toInt64(if(s.policy_version = 'base', 0, p.ordinal)) AS staleness
FROM (SELECT tenant, `update`, arrayJoin(sample_ids) AS sample_id FROM update_started) AS u
ASOF LEFT JOIN published AS before ON before.tenant = u.tenant AND before.`update` < u.`update`
ANY LEFT JOIN sample_assembled AS s ON s.event_id = u.sample_id
ANY LEFT JOIN published AS p ON p.version = s.policy_version
SETTINGS join_use_nulls = 1
COMMENT 'One row a trained sample: how many policy versions lie between sampling and training';
