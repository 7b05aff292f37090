-- One table for each kind of event, named after it. Absent values are NULL or an empty array, never 0.
-- Codecs, measured on made-up responses of 200 tokens (ids of a skewed vocabulary of 49,152; a third of the log-probs near 0), size against raw:
-- ids T64+ZSTD 2.6, ZSTD 2.1, Delta+ZSTD 1.7, LZ4 1.4; log-probs ZSTD 1.09, FPC 1.01, Gorilla 0.98 (they are noise: nothing helps).
-- ORDER BY begins with tenant and session: analysts ask by session, and joins by turn find it there.

CREATE TABLE IF NOT EXISTS action_taken
(
    tenant                  LowCardinality(String),
    session                 String CODEC(ZSTD(1)),
    event_id                UUID CODEC(ZSTD(1)),
    source                  LowCardinality(String) COMMENT 'Who wrote it',
    turn_kind               LowCardinality(String) COMMENT 'main or side',
    model                   LowCardinality(String),
    policy_version          Nullable(String) CODEC(ZSTD(1)),
    finish_reason           LowCardinality(String),
    context_parent_turn_id  Nullable(UUID) COMMENT 'The context is that turn''s, its response, and context_hashes; absent: context_hashes is all of it' CODEC(ZSTD(1)),
    context_hashes          Array(UUID) COMMENT 'In messages, in order' CODEC(ZSTD(1)),
    tool_hashes             Array(UUID) COMMENT 'In tools, in order' CODEC(ZSTD(1)),
    response_hash           UUID COMMENT 'In messages' CODEC(ZSTD(1)),
    response_text           String CODEC(ZSTD(1)),
    reasoning               Nullable(String) CODEC(ZSTD(1)),
    call_names              Array(String) COMMENT 'Tools that the response calls' CODEC(ZSTD(1)),
    call_arguments          Array(String) CODEC(ZSTD(1)),
    prompt_ids              Array(UInt32) CODEC(T64, ZSTD(1)),
    response_ids            Array(UInt32) CODEC(T64, ZSTD(1)),
    logprobs                Array(Float32) COMMENT 'Nats, at temperature 1; empty: absent' CODEC(ZSTD(1)),
    logprobs_sampled        Array(Float32) COMMENT 'Nats, at the sampling temperature; empty: absent' CODEC(ZSTD(1)),
    top_k_k                 UInt32 COMMENT 'Entries a token; 0: absent' CODEC(T64, ZSTD(1)),
    top_k_ids               Array(UInt32) COMMENT '[tokens][k], row by row' CODEC(T64, ZSTD(1)),
    top_k_logprobs          Array(Float32) COMMENT '[tokens][k], row by row, nats at the sampling temperature' CODEC(ZSTD(1)),
    mask                    Array(UInt8) COMMENT '1 trained, 0 masked; empty: all 1' CODEC(ZSTD(1)),
    temperature             Nullable(Float64) CODEC(ZSTD(1)),
    top_p                   Nullable(Float64) CODEC(ZSTD(1)),
    top_k                   Nullable(UInt32) CODEC(ZSTD(1)),
    min_p                   Nullable(Float64) CODEC(ZSTD(1)),
    seed                    Nullable(Int64) CODEC(ZSTD(1)),
    max_tokens              Nullable(UInt32) CODEC(ZSTD(1)),
    stop                    Array(String) CODEC(ZSTD(1)),
    input_tokens            Nullable(UInt64) CODEC(ZSTD(1)),
    cached_tokens           Nullable(UInt64) CODEC(ZSTD(1)),
    output_tokens           Nullable(UInt64) CODEC(ZSTD(1)),
    cost_usd                Nullable(Float64) CODEC(ZSTD(1)),
    response_id             Nullable(String) CODEC(ZSTD(1)),
    user                    Nullable(String) CODEC(ZSTD(1)),
    parent_session          Nullable(String) CODEC(ZSTD(1)),
    parent_turn_id          Nullable(UUID) COMMENT 'The turn of the parent session after which this session left it' CODEC(ZSTD(1)),
    awaits_outcome          Bool,
    `group`                 Nullable(String) CODEC(ZSTD(1)),
    untrainable_reason      Nullable(String) CODEC(ZSTD(1)),
    attributes              Map(String, String) CODEC(ZSTD(1)),
    event_time              Nullable(DateTime64(6, 'UTC')) COMMENT 'When it happened, as the producer says' CODEC(ZSTD(1)),
    record_time             DateTime64(3, 'UTC') COMMENT 'Time of the record in the log' CODEC(Delta, ZSTD(1)),
    topic                   LowCardinality(String) DEFAULT 'interactions',
    partition               UInt32,
    offset                  UInt64 CODEC(Delta, ZSTD(1)),
    ingest_time             DateTime64(3, 'UTC') DEFAULT now64(3, 'UTC') COMMENT 'When ClickHouse got it' CODEC(Delta, ZSTD(1)),
    turn_id                 UUID ALIAS event_id,
    INDEX offset_range offset TYPE minmax GRANULARITY 1
)
ENGINE = MergeTree ORDER BY (tenant, session, partition, offset)
SETTINGS non_replicated_deduplication_window = 10000
COMMENT 'The policy answered once';

CREATE TABLE IF NOT EXISTS next_state_observed
(
    tenant        LowCardinality(String),
    session       String CODEC(ZSTD(1)),
    event_id      UUID CODEC(ZSTD(1)),
    source        LowCardinality(String) COMMENT 'Who wrote it',
    turn_id       Nullable(UUID) COMMENT 'Absent: the newest main turn of the session' CODEC(ZSTD(1)),
    more_follows  Bool,
    kinds         Array(String) COMMENT 'user_reply, tool_result, terminal_output, gui_state, test_verdict, diff or harness, in order' CODEC(ZSTD(1)),
    texts         Array(String) COMMENT 'Text of each observation' CODEC(ZSTD(1)),
    hashes        Array(UUID) COMMENT 'Message of each observation, in messages; all zero: none' CODEC(ZSTD(1)),
    exit_codes    Array(Nullable(Int32)) CODEC(ZSTD(1)),
    errors        Array(Nullable(Bool)) COMMENT 'The source marked the observation as an error' CODEC(ZSTD(1)),
    rewards       Array(Nullable(Float64)) CODEC(ZSTD(1)),
    tests_passed  Array(Nullable(UInt32)) CODEC(ZSTD(1)),
    tests_failed  Array(Nullable(UInt32)) CODEC(ZSTD(1)),
    event_time    Nullable(DateTime64(6, 'UTC')) COMMENT 'When it happened, as the producer says' CODEC(ZSTD(1)),
    record_time   DateTime64(3, 'UTC') COMMENT 'Time of the record in the log' CODEC(Delta, ZSTD(1)),
    topic         LowCardinality(String) DEFAULT 'interactions',
    partition     UInt32,
    offset        UInt64 CODEC(Delta, ZSTD(1)),
    ingest_time   DateTime64(3, 'UTC') DEFAULT now64(3, 'UTC') COMMENT 'When ClickHouse got it' CODEC(Delta, ZSTD(1)),
    INDEX offset_range offset TYPE minmax GRANULARITY 1
)
ENGINE = MergeTree ORDER BY (tenant, session, partition, offset)
SETTINGS non_replicated_deduplication_window = 10000
COMMENT 'What the world answered to an action';

CREATE TABLE IF NOT EXISTS feedback_given
(
    tenant       LowCardinality(String),
    session      String CODEC(ZSTD(1)),
    event_id     UUID CODEC(ZSTD(1)),
    source       LowCardinality(String) COMMENT 'Who wrote it',
    turn_id      Nullable(UUID) COMMENT 'Absent: the newest main turn of the session' CODEC(ZSTD(1)),
    score        Nullable(Float64) CODEC(ZSTD(1)),
    text         Nullable(String) CODEC(ZSTD(1)),
    user         Nullable(String) CODEC(ZSTD(1)),
    correction   Nullable(String) CODEC(ZSTD(1)),
    event_time   Nullable(DateTime64(6, 'UTC')) COMMENT 'When it happened, as the producer says' CODEC(ZSTD(1)),
    record_time  DateTime64(3, 'UTC') COMMENT 'Time of the record in the log' CODEC(Delta, ZSTD(1)),
    topic        LowCardinality(String) DEFAULT 'interactions',
    partition    UInt32,
    offset       UInt64 CODEC(Delta, ZSTD(1)),
    ingest_time  DateTime64(3, 'UTC') DEFAULT now64(3, 'UTC') COMMENT 'When ClickHouse got it' CODEC(Delta, ZSTD(1)),
    INDEX offset_range offset TYPE minmax GRANULARITY 1
)
ENGINE = MergeTree ORDER BY (tenant, session, partition, offset)
SETTINGS non_replicated_deduplication_window = 10000
COMMENT 'An explicit judgement of a turn';

CREATE TABLE IF NOT EXISTS outcome_reported
(
    tenant              LowCardinality(String),
    session             String CODEC(ZSTD(1)),
    event_id            UUID CODEC(ZSTD(1)),
    source              LowCardinality(String) COMMENT 'Who wrote it',
    score               Float64 CODEC(ZSTD(1)),
    success             Nullable(Bool),
    checker             LowCardinality(String),
    detail              Nullable(String) CODEC(ZSTD(1)),
    tests_passed        Nullable(UInt32) CODEC(ZSTD(1)),
    tests_failed        Nullable(UInt32) CODEC(ZSTD(1)),
    tests_failed_names  Array(String) CODEC(ZSTD(1)),
    event_time          Nullable(DateTime64(6, 'UTC')) COMMENT 'When it happened, as the producer says' CODEC(ZSTD(1)),
    record_time         DateTime64(3, 'UTC') COMMENT 'Time of the record in the log' CODEC(Delta, ZSTD(1)),
    topic               LowCardinality(String) DEFAULT 'interactions',
    partition           UInt32,
    offset              UInt64 CODEC(Delta, ZSTD(1)),
    ingest_time         DateTime64(3, 'UTC') DEFAULT now64(3, 'UTC') COMMENT 'When ClickHouse got it' CODEC(Delta, ZSTD(1)),
    INDEX offset_range offset TYPE minmax GRANULARITY 1
)
ENGINE = MergeTree ORDER BY (tenant, session, partition, offset)
SETTINGS non_replicated_deduplication_window = 10000
COMMENT 'A checker''s score of a whole session';

CREATE TABLE IF NOT EXISTS session_ended
(
    tenant        LowCardinality(String),
    session       String CODEC(ZSTD(1)),
    event_id      UUID CODEC(ZSTD(1)),
    source        LowCardinality(String) COMMENT 'Who wrote it',
    reason        String CODEC(ZSTD(1)),
    kinds         Array(String) COMMENT 'user_reply, tool_result, terminal_output, gui_state, test_verdict, diff or harness, in order' CODEC(ZSTD(1)),
    texts         Array(String) COMMENT 'Text of each observation' CODEC(ZSTD(1)),
    hashes        Array(UUID) COMMENT 'Message of each observation, in messages; all zero: none' CODEC(ZSTD(1)),
    exit_codes    Array(Nullable(Int32)) CODEC(ZSTD(1)),
    errors        Array(Nullable(Bool)) COMMENT 'The source marked the observation as an error' CODEC(ZSTD(1)),
    rewards       Array(Nullable(Float64)) CODEC(ZSTD(1)),
    tests_passed  Array(Nullable(UInt32)) CODEC(ZSTD(1)),
    tests_failed  Array(Nullable(UInt32)) CODEC(ZSTD(1)),
    event_time    Nullable(DateTime64(6, 'UTC')) COMMENT 'When it happened, as the producer says' CODEC(ZSTD(1)),
    record_time   DateTime64(3, 'UTC') COMMENT 'Time of the record in the log' CODEC(Delta, ZSTD(1)),
    topic         LowCardinality(String) DEFAULT 'interactions',
    partition     UInt32,
    offset        UInt64 CODEC(Delta, ZSTD(1)),
    ingest_time   DateTime64(3, 'UTC') DEFAULT now64(3, 'UTC') COMMENT 'When ClickHouse got it' CODEC(Delta, ZSTD(1)),
    INDEX offset_range offset TYPE minmax GRANULARITY 1
)
ENGINE = MergeTree ORDER BY (tenant, session, partition, offset)
SETTINGS non_replicated_deduplication_window = 10000
COMMENT 'No more of the session will come';
