-- The events that processors and the trainer derive: one table for each kind, by the rules of 0002.

CREATE TABLE IF NOT EXISTS turn_closed
(
    tenant                   LowCardinality(String),
    session                  String CODEC(ZSTD(1)),
    event_id                 UUID CODEC(ZSTD(1)),
    source                   LowCardinality(String) COMMENT 'Who wrote it',
    turn_id                  UUID COMMENT 'Event id of the ActionTaken' CODEC(ZSTD(1)),
    turn_index               UInt32 CODEC(T64, ZSTD(1)),
    close_reason             LowCardinality(String),
    end_reason               Nullable(String) CODEC(ZSTD(1)),
    feedbacks                UInt32 COMMENT 'How many feedbacks came before the turn closed' CODEC(T64, ZSTD(1)),
    outcome                  Nullable(Float64) CODEC(ZSTD(1)),
    source_ids               Array(UUID) CODEC(ZSTD(1)),
    next_state_kinds         Array(String) COMMENT 'user_reply, tool_result, terminal_output, gui_state, test_verdict, diff or harness, in order' CODEC(ZSTD(1)),
    next_state_texts         Array(String) COMMENT 'Text of each observation' CODEC(ZSTD(1)),
    next_state_hashes        Array(UUID) COMMENT 'Message of each observation, in messages; all zero: none' CODEC(ZSTD(1)),
    next_state_exit_codes    Array(Nullable(Int32)) CODEC(ZSTD(1)),
    next_state_errors        Array(Nullable(Bool)) COMMENT 'The source marked the observation as an error' CODEC(ZSTD(1)),
    next_state_rewards       Array(Nullable(Float64)) CODEC(ZSTD(1)),
    next_state_tests_passed  Array(Nullable(UInt32)) CODEC(ZSTD(1)),
    next_state_tests_failed  Array(Nullable(UInt32)) CODEC(ZSTD(1)),
    event_time               Nullable(DateTime64(6, 'UTC')) COMMENT 'When it happened, as the producer says' CODEC(ZSTD(1)),
    record_time              DateTime64(3, 'UTC') COMMENT 'Time of the record in the log' CODEC(Delta, ZSTD(1)),
    topic                    LowCardinality(String) DEFAULT 'turns',
    partition                UInt32,
    offset                   UInt64 CODEC(Delta, ZSTD(1)),
    ingest_time              DateTime64(3, 'UTC') DEFAULT now64(3, 'UTC') COMMENT 'When ClickHouse got it' CODEC(Delta, ZSTD(1)),
    INDEX offset_range offset TYPE minmax GRANULARITY 1
)
ENGINE = MergeTree ORDER BY (tenant, session, partition, offset)
SETTINGS non_replicated_deduplication_window = 10000
COMMENT 'An action and its next state, joined; one row a turn';

CREATE TABLE IF NOT EXISTS vote_cast
(
    tenant       LowCardinality(String),
    session      String CODEC(ZSTD(1)),
    event_id     UUID CODEC(ZSTD(1)),
    source       LowCardinality(String) COMMENT 'Who wrote it',
    turn_id      UUID COMMENT 'Event id of the ActionTaken' CODEC(ZSTD(1)),
    judge        LowCardinality(String),
    `index`      UInt32 CODEC(T64, ZSTD(1)),
    vote         Nullable(Int8) COMMENT '-1, 0, 1; absent: no valid vote' CODEC(ZSTD(1)),
    rationale    String CODEC(ZSTD(1)),
    model        Nullable(String) CODEC(ZSTD(1)),
    error        Nullable(String) CODEC(ZSTD(1)),
    event_time   Nullable(DateTime64(6, 'UTC')) COMMENT 'When it happened, as the producer says' CODEC(ZSTD(1)),
    record_time  DateTime64(3, 'UTC') COMMENT 'Time of the record in the log' CODEC(Delta, ZSTD(1)),
    topic        LowCardinality(String) DEFAULT 'verdicts',
    partition    UInt32,
    offset       UInt64 CODEC(Delta, ZSTD(1)),
    ingest_time  DateTime64(3, 'UTC') DEFAULT now64(3, 'UTC') COMMENT 'When ClickHouse got it' CODEC(Delta, ZSTD(1)),
    INDEX offset_range offset TYPE minmax GRANULARITY 1
)
ENGINE = MergeTree ORDER BY (tenant, session, partition, offset)
SETTINGS non_replicated_deduplication_window = 10000
COMMENT 'One judge''s one opinion of a turn';

CREATE TABLE IF NOT EXISTS turn_judged
(
    tenant       LowCardinality(String),
    session      String CODEC(ZSTD(1)),
    event_id     UUID CODEC(ZSTD(1)),
    source       LowCardinality(String) COMMENT 'Who wrote it',
    turn_id      UUID COMMENT 'Event id of the ActionTaken' CODEC(ZSTD(1)),
    score        Nullable(Int8) COMMENT '-1, 0, 1; absent: nobody could be asked' CODEC(ZSTD(1)),
    mean_vote    Float64 CODEC(ZSTD(1)),
    outcome      Nullable(Float64) CODEC(ZSTD(1)),
    step_reward  Nullable(Float64) CODEC(ZSTD(1)),
    judge        LowCardinality(String),
    votes        UInt32 CODEC(T64, ZSTD(1)),
    valid_votes  UInt32 CODEC(T64, ZSTD(1)),
    reason       String CODEC(ZSTD(1)),
    turn_offset  UInt64 CODEC(T64, ZSTD(1)),
    event_time   Nullable(DateTime64(6, 'UTC')) COMMENT 'When it happened, as the producer says' CODEC(ZSTD(1)),
    record_time  DateTime64(3, 'UTC') COMMENT 'Time of the record in the log' CODEC(Delta, ZSTD(1)),
    topic        LowCardinality(String) DEFAULT 'verdicts',
    partition    UInt32,
    offset       UInt64 CODEC(Delta, ZSTD(1)),
    ingest_time  DateTime64(3, 'UTC') DEFAULT now64(3, 'UTC') COMMENT 'When ClickHouse got it' CODEC(Delta, ZSTD(1)),
    INDEX offset_range offset TYPE minmax GRANULARITY 1
)
ENGINE = MergeTree ORDER BY (tenant, session, partition, offset)
SETTINGS non_replicated_deduplication_window = 10000
COMMENT 'The evaluative signal of a turn';

CREATE TABLE IF NOT EXISTS hint_vote_cast
(
    tenant       LowCardinality(String),
    session      String CODEC(ZSTD(1)),
    event_id     UUID CODEC(ZSTD(1)),
    source       LowCardinality(String) COMMENT 'Who wrote it',
    turn_id      UUID COMMENT 'Event id of the ActionTaken' CODEC(ZSTD(1)),
    finder       LowCardinality(String),
    `index`      UInt32 CODEC(T64, ZSTD(1)),
    decision     Nullable(Int8) CODEC(ZSTD(1)),
    hint         String CODEC(ZSTD(1)),
    rationale    String CODEC(ZSTD(1)),
    model        Nullable(String) CODEC(ZSTD(1)),
    error        Nullable(String) CODEC(ZSTD(1)),
    event_time   Nullable(DateTime64(6, 'UTC')) COMMENT 'When it happened, as the producer says' CODEC(ZSTD(1)),
    record_time  DateTime64(3, 'UTC') COMMENT 'Time of the record in the log' CODEC(Delta, ZSTD(1)),
    topic        LowCardinality(String) DEFAULT 'hints',
    partition    UInt32,
    offset       UInt64 CODEC(Delta, ZSTD(1)),
    ingest_time  DateTime64(3, 'UTC') DEFAULT now64(3, 'UTC') COMMENT 'When ClickHouse got it' CODEC(Delta, ZSTD(1)),
    INDEX offset_range offset TYPE minmax GRANULARITY 1
)
ENGINE = MergeTree ORDER BY (tenant, session, partition, offset)
SETTINGS non_replicated_deduplication_window = 10000
COMMENT 'One finder''s one opinion whether a next state holds a hint';

CREATE TABLE IF NOT EXISTS teacher_scored
(
    tenant               LowCardinality(String),
    session              String CODEC(ZSTD(1)),
    event_id             UUID CODEC(ZSTD(1)),
    source               LowCardinality(String) COMMENT 'Who wrote it',
    turn_id              UUID COMMENT 'Event id of the ActionTaken' CODEC(ZSTD(1)),
    hint_index           UInt32 CODEC(T64, ZSTD(1)),
    hint                 String CODEC(ZSTD(1)),
    teacher_version      LowCardinality(String),
    temperature          Float64 CODEC(ZSTD(1)),
    logprobs             Array(Float32) CODEC(ZSTD(1)),
    top_k_k              UInt32 CODEC(T64, ZSTD(1)),
    top_k_ids            Array(UInt32) CODEC(T64, ZSTD(1)),
    top_k_logprobs       Array(Float32) CODEC(ZSTD(1)),
    logprobs_at_student  Array(Float32) CODEC(ZSTD(1)),
    overlap              UInt64 CODEC(T64, ZSTD(1)),
    event_time           Nullable(DateTime64(6, 'UTC')) COMMENT 'When it happened, as the producer says' CODEC(ZSTD(1)),
    record_time          DateTime64(3, 'UTC') COMMENT 'Time of the record in the log' CODEC(Delta, ZSTD(1)),
    topic                LowCardinality(String) DEFAULT 'hints',
    partition            UInt32,
    offset               UInt64 CODEC(Delta, ZSTD(1)),
    ingest_time          DateTime64(3, 'UTC') DEFAULT now64(3, 'UTC') COMMENT 'When ClickHouse got it' CODEC(Delta, ZSTD(1)),
    INDEX offset_range offset TYPE minmax GRANULARITY 1
)
ENGINE = MergeTree ORDER BY (tenant, session, partition, offset)
SETTINGS non_replicated_deduplication_window = 10000
COMMENT 'The teacher''s view of a response under one hint';

CREATE TABLE IF NOT EXISTS hint_selected
(
    tenant                 LowCardinality(String),
    session                String CODEC(ZSTD(1)),
    event_id               UUID CODEC(ZSTD(1)),
    source                 LowCardinality(String) COMMENT 'Who wrote it',
    turn_id                UUID COMMENT 'Event id of the ActionTaken' CODEC(ZSTD(1)),
    hint                   String CODEC(ZSTD(1)),
    candidates             Array(String) CODEC(ZSTD(1)),
    candidate_index        UInt32 CODEC(T64, ZSTD(1)),
    selection              LowCardinality(String),
    finder                 LowCardinality(String),
    teacher_version        Nullable(String) CODEC(ZSTD(1)),
    teacher_absent_reason  Nullable(String) CODEC(ZSTD(1)),
    turn_offset            UInt64 CODEC(T64, ZSTD(1)),
    event_time             Nullable(DateTime64(6, 'UTC')) COMMENT 'When it happened, as the producer says' CODEC(ZSTD(1)),
    record_time            DateTime64(3, 'UTC') COMMENT 'Time of the record in the log' CODEC(Delta, ZSTD(1)),
    topic                  LowCardinality(String) DEFAULT 'hints',
    partition              UInt32,
    offset                 UInt64 CODEC(Delta, ZSTD(1)),
    ingest_time            DateTime64(3, 'UTC') DEFAULT now64(3, 'UTC') COMMENT 'When ClickHouse got it' CODEC(Delta, ZSTD(1)),
    INDEX offset_range offset TYPE minmax GRANULARITY 1
)
ENGINE = MergeTree ORDER BY (tenant, session, partition, offset)
SETTINGS non_replicated_deduplication_window = 10000
COMMENT 'The directive signal of a turn';

CREATE TABLE IF NOT EXISTS hint_absent
(
    tenant       LowCardinality(String),
    session      String CODEC(ZSTD(1)),
    event_id     UUID CODEC(ZSTD(1)),
    source       LowCardinality(String) COMMENT 'Who wrote it',
    turn_id      UUID COMMENT 'Event id of the ActionTaken' CODEC(ZSTD(1)),
    reason       String CODEC(ZSTD(1)),
    turn_offset  UInt64 CODEC(T64, ZSTD(1)),
    event_time   Nullable(DateTime64(6, 'UTC')) COMMENT 'When it happened, as the producer says' CODEC(ZSTD(1)),
    record_time  DateTime64(3, 'UTC') COMMENT 'Time of the record in the log' CODEC(Delta, ZSTD(1)),
    topic        LowCardinality(String) DEFAULT 'hints',
    partition    UInt32,
    offset       UInt64 CODEC(Delta, ZSTD(1)),
    ingest_time  DateTime64(3, 'UTC') DEFAULT now64(3, 'UTC') COMMENT 'When ClickHouse got it' CODEC(Delta, ZSTD(1)),
    INDEX offset_range offset TYPE minmax GRANULARITY 1
)
ENGINE = MergeTree ORDER BY (tenant, session, partition, offset)
SETTINGS non_replicated_deduplication_window = 10000
COMMENT 'No hint was accepted for a turn';

CREATE TABLE IF NOT EXISTS sample_assembled
(
    tenant                 LowCardinality(String),
    session                String CODEC(ZSTD(1)),
    event_id               UUID CODEC(ZSTD(1)),
    source                 LowCardinality(String) COMMENT 'Who wrote it',
    turn_id                UUID COMMENT 'Event id of the ActionTaken' CODEC(ZSTD(1)),
    sample_kind            LowCardinality(String) COMMENT 'combined, directive or evaluative',
    reward                 Float64 CODEC(ZSTD(1)),
    step_reward            Nullable(Float64) CODEC(ZSTD(1)),
    hint                   Nullable(String) CODEC(ZSTD(1)),
    teacher_version        Nullable(String) CODEC(ZSTD(1)),
    teacher_absent_reason  Nullable(String) CODEC(ZSTD(1)),
    response_hash          UUID COMMENT 'In messages' CODEC(ZSTD(1)),
    model                  LowCardinality(String),
    policy_version         Nullable(String) CODEC(ZSTD(1)),
    user                   Nullable(String) CODEC(ZSTD(1)),
    `group`                Nullable(String) CODEC(ZSTD(1)),
    turn_index             UInt32 CODEC(T64, ZSTD(1)),
    temperature            Nullable(Float64) CODEC(ZSTD(1)),
    tokens                 UInt32 COMMENT 'Response tokens; 0: the source gave none' CODEC(T64, ZSTD(1)),
    trained_tokens         UInt32 COMMENT 'Response tokens that are not masked' CODEC(T64, ZSTD(1)),
    event_time             Nullable(DateTime64(6, 'UTC')) COMMENT 'When it happened, as the producer says' CODEC(ZSTD(1)),
    record_time            DateTime64(3, 'UTC') COMMENT 'Time of the record in the log' CODEC(Delta, ZSTD(1)),
    topic                  LowCardinality(String) DEFAULT 'samples',
    partition              UInt32,
    offset                 UInt64 CODEC(Delta, ZSTD(1)),
    ingest_time            DateTime64(3, 'UTC') DEFAULT now64(3, 'UTC') COMMENT 'When ClickHouse got it' CODEC(Delta, ZSTD(1)),
    INDEX offset_range offset TYPE minmax GRANULARITY 1
)
ENGINE = MergeTree ORDER BY (tenant, session, partition, offset)
SETTINGS non_replicated_deduplication_window = 10000
COMMENT 'One trainable turn';

CREATE TABLE IF NOT EXISTS turn_skipped
(
    tenant       LowCardinality(String),
    session      String CODEC(ZSTD(1)),
    event_id     UUID CODEC(ZSTD(1)),
    source       LowCardinality(String) COMMENT 'Who wrote it',
    turn_id      UUID COMMENT 'Event id of the ActionTaken' CODEC(ZSTD(1)),
    reason       String CODEC(ZSTD(1)),
    event_time   Nullable(DateTime64(6, 'UTC')) COMMENT 'When it happened, as the producer says' CODEC(ZSTD(1)),
    record_time  DateTime64(3, 'UTC') COMMENT 'Time of the record in the log' CODEC(Delta, ZSTD(1)),
    topic        LowCardinality(String) DEFAULT 'samples',
    partition    UInt32,
    offset       UInt64 CODEC(Delta, ZSTD(1)),
    ingest_time  DateTime64(3, 'UTC') DEFAULT now64(3, 'UTC') COMMENT 'When ClickHouse got it' CODEC(Delta, ZSTD(1)),
    INDEX offset_range offset TYPE minmax GRANULARITY 1
)
ENGINE = MergeTree ORDER BY (tenant, session, partition, offset)
SETTINGS non_replicated_deduplication_window = 10000
COMMENT 'The turn gives no sample, and why';

CREATE TABLE IF NOT EXISTS update_started
(
    tenant          LowCardinality(String),
    session         String CODEC(ZSTD(1)),
    event_id        UUID CODEC(ZSTD(1)),
    source          LowCardinality(String) COMMENT 'Who wrote it',
    `update`        UInt64 CODEC(T64, ZSTD(1)),
    parent_version  String CODEC(ZSTD(1)),
    sample_ids      Array(UUID) CODEC(ZSTD(1)),
    objective       String COMMENT 'JSON' CODEC(ZSTD(1)),
    seed            UInt64 CODEC(T64, ZSTD(1)),
    engine          LowCardinality(String),
    event_time      Nullable(DateTime64(6, 'UTC')) COMMENT 'When it happened, as the producer says' CODEC(ZSTD(1)),
    record_time     DateTime64(3, 'UTC') COMMENT 'Time of the record in the log' CODEC(Delta, ZSTD(1)),
    topic           LowCardinality(String) DEFAULT 'policies',
    partition       UInt32,
    offset          UInt64 CODEC(Delta, ZSTD(1)),
    ingest_time     DateTime64(3, 'UTC') DEFAULT now64(3, 'UTC') COMMENT 'When ClickHouse got it' CODEC(Delta, ZSTD(1)),
    INDEX offset_range offset TYPE minmax GRANULARITY 1
)
ENGINE = MergeTree ORDER BY (tenant, session, partition, offset)
SETTINGS non_replicated_deduplication_window = 10000
COMMENT 'The trainer took a minibatch';

CREATE TABLE IF NOT EXISTS policy_published
(
    tenant             LowCardinality(String),
    session            String CODEC(ZSTD(1)),
    event_id           UUID CODEC(ZSTD(1)),
    source             LowCardinality(String) COMMENT 'Who wrote it',
    `update`           UInt64 CODEC(T64, ZSTD(1)),
    update_id          String CODEC(ZSTD(1)),
    parent_version     String CODEC(ZSTD(1)),
    peft_sha256        String COMMENT 'Hexadecimal' CODEC(ZSTD(1)),
    gguf_sha256        String COMMENT 'Hexadecimal' CODEC(ZSTD(1)),
    checkpoint_sha256  Nullable(String) COMMENT 'Hexadecimal' CODEC(ZSTD(1)),
    base_model         LowCardinality(String),
    metrics            Map(String, Float64) CODEC(ZSTD(1)),
    event_time         Nullable(DateTime64(6, 'UTC')) COMMENT 'When it happened, as the producer says' CODEC(ZSTD(1)),
    record_time        DateTime64(3, 'UTC') COMMENT 'Time of the record in the log' CODEC(Delta, ZSTD(1)),
    topic              LowCardinality(String) DEFAULT 'policies',
    partition          UInt32,
    offset             UInt64 CODEC(Delta, ZSTD(1)),
    ingest_time        DateTime64(3, 'UTC') DEFAULT now64(3, 'UTC') COMMENT 'When ClickHouse got it' CODEC(Delta, ZSTD(1)),
    INDEX offset_range offset TYPE minmax GRANULARITY 1
)
ENGINE = MergeTree ORDER BY (tenant, session, partition, offset)
SETTINGS non_replicated_deduplication_window = 10000
COMMENT 'New weights can be served; event_id is the policy version';

CREATE TABLE IF NOT EXISTS policy_rolled_back
(
    tenant        LowCardinality(String),
    session       String CODEC(ZSTD(1)),
    event_id      UUID CODEC(ZSTD(1)),
    source        LowCardinality(String) COMMENT 'Who wrote it',
    from_version  String CODEC(ZSTD(1)),
    to_version    String CODEC(ZSTD(1)),
    reason        String CODEC(ZSTD(1)),
    by            String CODEC(ZSTD(1)),
    event_time    Nullable(DateTime64(6, 'UTC')) COMMENT 'When it happened, as the producer says' CODEC(ZSTD(1)),
    record_time   DateTime64(3, 'UTC') COMMENT 'Time of the record in the log' CODEC(Delta, ZSTD(1)),
    topic         LowCardinality(String) DEFAULT 'policies',
    partition     UInt32,
    offset        UInt64 CODEC(Delta, ZSTD(1)),
    ingest_time   DateTime64(3, 'UTC') DEFAULT now64(3, 'UTC') COMMENT 'When ClickHouse got it' CODEC(Delta, ZSTD(1)),
    INDEX offset_range offset TYPE minmax GRANULARITY 1
)
ENGINE = MergeTree ORDER BY (tenant, session, partition, offset)
SETTINGS non_replicated_deduplication_window = 10000
COMMENT 'An older version was put back';

CREATE TABLE IF NOT EXISTS dead_lettered
(
    tenant            LowCardinality(String),
    session           String CODEC(ZSTD(1)),
    event_id          UUID CODEC(ZSTD(1)),
    source            LowCardinality(String) COMMENT 'Who wrote it',
    stage             LowCardinality(String),
    reason            String CODEC(ZSTD(1)),
    origin_topic      Nullable(String) CODEC(ZSTD(1)),
    origin_partition  Nullable(UInt32) CODEC(ZSTD(1)),
    origin_offset     Nullable(UInt64) CODEC(ZSTD(1)),
    origin_file       Nullable(String) CODEC(ZSTD(1)),
    origin_line       Nullable(UInt64) CODEC(ZSTD(1)),
    origin_key        String CODEC(ZSTD(1)),
    value             String CODEC(ZSTD(1)),
    truncated         Bool,
    event_time        Nullable(DateTime64(6, 'UTC')) COMMENT 'When it happened, as the producer says' CODEC(ZSTD(1)),
    record_time       DateTime64(3, 'UTC') COMMENT 'Time of the record in the log' CODEC(Delta, ZSTD(1)),
    topic             LowCardinality(String) DEFAULT 'deadletters',
    partition         UInt32,
    offset            UInt64 CODEC(Delta, ZSTD(1)),
    ingest_time       DateTime64(3, 'UTC') DEFAULT now64(3, 'UTC') COMMENT 'When ClickHouse got it' CODEC(Delta, ZSTD(1)),
    INDEX offset_range offset TYPE minmax GRANULARITY 1
)
ENGINE = MergeTree ORDER BY (tenant, session, partition, offset)
SETTINGS non_replicated_deduplication_window = 10000
COMMENT 'A record that a stage could not take';
