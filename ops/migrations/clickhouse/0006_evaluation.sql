-- Standing hints, rehearsals, evaluations, and updates that came to nothing: one table for each kind, by the rules of 0002.

CREATE TABLE IF NOT EXISTS update_skipped
(
    tenant         LowCardinality(String),
    session        String CODEC(ZSTD(1)),
    event_id       UUID CODEC(ZSTD(1)),
    source         LowCardinality(String) COMMENT 'Who wrote it',
    `update`       UInt64 CODEC(T64, ZSTD(1)),
    update_id      UUID COMMENT 'Event id of the UpdateStarted' CODEC(ZSTD(1)),
    parent_version String CODEC(ZSTD(1)),
    reason         String CODEC(ZSTD(1)),
    event_time     Nullable(DateTime64(6, 'UTC')) COMMENT 'When it happened, as the producer says' CODEC(ZSTD(1)),
    record_time    DateTime64(3, 'UTC') COMMENT 'Time of the record in the log' CODEC(Delta, ZSTD(1)),
    topic          LowCardinality(String) DEFAULT 'policies',
    partition      UInt32,
    offset         UInt64 CODEC(Delta, ZSTD(1)),
    ingest_time    DateTime64(3, 'UTC') DEFAULT now64(3, 'UTC') COMMENT 'When ClickHouse got it' CODEC(Delta, ZSTD(1)),
    INDEX offset_range offset TYPE minmax GRANULARITY 1
)
ENGINE = MergeTree ORDER BY (tenant, session, partition, offset)
SETTINGS non_replicated_deduplication_window = 10000
COMMENT 'An update came to nothing: its loss or gradient was not finite, or its engine failed for good';

CREATE TABLE IF NOT EXISTS hint_stood
(
    tenant      LowCardinality(String),
    session     String CODEC(ZSTD(1)),
    event_id    UUID CODEC(ZSTD(1)),
    source      LowCardinality(String) COMMENT 'Who wrote it',
    user        String CODEC(ZSTD(1)),
    hint        String CODEC(ZSTD(1)),
    turn_id     UUID COMMENT 'The turn whose next state held it' CODEC(ZSTD(1)),
    event_time  Nullable(DateTime64(6, 'UTC')) COMMENT 'When it happened, as the producer says' CODEC(ZSTD(1)),
    record_time DateTime64(3, 'UTC') COMMENT 'Time of the record in the log' CODEC(Delta, ZSTD(1)),
    topic       LowCardinality(String) DEFAULT 'standing',
    partition   UInt32,
    offset      UInt64 CODEC(Delta, ZSTD(1)),
    ingest_time DateTime64(3, 'UTC') DEFAULT now64(3, 'UTC') COMMENT 'When ClickHouse got it' CODEC(Delta, ZSTD(1)),
    INDEX offset_range offset TYPE minmax GRANULARITY 1
)
ENGINE = MergeTree ORDER BY (tenant, session, partition, offset)
SETTINGS non_replicated_deduplication_window = 10000
COMMENT 'A hint that a user gave stays: it teaches the later turns of that user';

CREATE TABLE IF NOT EXISTS hint_withdrawn
(
    tenant      LowCardinality(String),
    session     String CODEC(ZSTD(1)),
    event_id    UUID CODEC(ZSTD(1)),
    source      LowCardinality(String) COMMENT 'Who wrote it',
    user        String CODEC(ZSTD(1)),
    hint_id     UUID COMMENT 'Event id of the HintStood' CODEC(ZSTD(1)),
    reason      String CODEC(ZSTD(1)),
    by          LowCardinality(String),
    event_time  Nullable(DateTime64(6, 'UTC')) COMMENT 'When it happened, as the producer says' CODEC(ZSTD(1)),
    record_time DateTime64(3, 'UTC') COMMENT 'Time of the record in the log' CODEC(Delta, ZSTD(1)),
    topic       LowCardinality(String) DEFAULT 'standing',
    partition   UInt32,
    offset      UInt64 CODEC(Delta, ZSTD(1)),
    ingest_time DateTime64(3, 'UTC') DEFAULT now64(3, 'UTC') COMMENT 'When ClickHouse got it' CODEC(Delta, ZSTD(1)),
    INDEX offset_range offset TYPE minmax GRANULARITY 1
)
ENGINE = MergeTree ORDER BY (tenant, session, partition, offset)
SETTINGS non_replicated_deduplication_window = 10000
COMMENT 'A standing hint teaches no more';

CREATE TABLE IF NOT EXISTS rehearsal_ended
(
    tenant       LowCardinality(String),
    session      String CODEC(ZSTD(1)),
    event_id     UUID CODEC(ZSTD(1)),
    source       LowCardinality(String) COMMENT 'Who wrote it',
    hint_ids     Array(UUID) COMMENT 'Event ids of the HintStood that were rehearsed' CODEC(ZSTD(1)),
    sample_ids   Array(UUID) CODEC(ZSTD(1)),
    from_version String COMMENT 'The newest version before and after' CODEC(ZSTD(1)),
    to_version   String CODEC(ZSTD(1)),
    guard_before Float64 COMMENT 'Share of the held-out replies that the guard let pass, before and after' CODEC(ZSTD(1)),
    guard_after  Float64 CODEC(ZSTD(1)),
    reason       String COMMENT 'What ended it: the budget, or a guard that fell' CODEC(ZSTD(1)),
    seconds      Map(String, Float64) COMMENT 'Wall time by part' CODEC(ZSTD(1)),
    event_time   Nullable(DateTime64(6, 'UTC')) COMMENT 'When it happened, as the producer says' CODEC(ZSTD(1)),
    record_time  DateTime64(3, 'UTC') COMMENT 'Time of the record in the log' CODEC(Delta, ZSTD(1)),
    topic        LowCardinality(String) DEFAULT 'standing',
    partition    UInt32,
    offset       UInt64 CODEC(Delta, ZSTD(1)),
    ingest_time  DateTime64(3, 'UTC') DEFAULT now64(3, 'UTC') COMMENT 'When ClickHouse got it' CODEC(Delta, ZSTD(1)),
    INDEX offset_range offset TYPE minmax GRANULARITY 1
)
ENGINE = MergeTree ORDER BY (tenant, session, partition, offset)
SETTINGS non_replicated_deduplication_window = 10000
COMMENT 'The trainer rehearsed standing hints; one row a rehearsal';

CREATE TABLE IF NOT EXISTS evaluation_started
(
    tenant      LowCardinality(String),
    session     String CODEC(ZSTD(1)),
    event_id    UUID CODEC(ZSTD(1)),
    source      LowCardinality(String) COMMENT 'Who wrote it',
    arm         LowCardinality(String),
    seed        UInt64 CODEC(T64, ZSTD(1)),
    personas    Array(String) CODEC(ZSTD(1)),
    sessions    UInt32 COMMENT 'The cap of sessions' CODEC(T64, ZSTD(1)),
    half        LowCardinality(String) COMMENT 'Which half of the problems: tuning or reporting',
    settings    String COMMENT 'JSON of all that the arm sets' CODEC(ZSTD(1)),
    base_model  LowCardinality(String),
    event_time  Nullable(DateTime64(6, 'UTC')) COMMENT 'When it happened, as the producer says' CODEC(ZSTD(1)),
    record_time DateTime64(3, 'UTC') COMMENT 'Time of the record in the log' CODEC(Delta, ZSTD(1)),
    topic       LowCardinality(String) DEFAULT 'evaluations',
    partition   UInt32,
    offset      UInt64 CODEC(Delta, ZSTD(1)),
    ingest_time DateTime64(3, 'UTC') DEFAULT now64(3, 'UTC') COMMENT 'When ClickHouse got it' CODEC(Delta, ZSTD(1)),
    INDEX offset_range offset TYPE minmax GRANULARITY 1
)
ENGINE = MergeTree ORDER BY (tenant, session, partition, offset)
SETTINGS non_replicated_deduplication_window = 10000
COMMENT 'One run of an arm of nextstate eval began';

CREATE TABLE IF NOT EXISTS reply_evaluated
(
    tenant         LowCardinality(String),
    session        String CODEC(ZSTD(1)),
    event_id       UUID CODEC(ZSTD(1)),
    source         LowCardinality(String) COMMENT 'Who wrote it',
    arm            LowCardinality(String),
    seed           UInt64 CODEC(T64, ZSTD(1)),
    persona        LowCardinality(String),
    phase          LowCardinality(String),
    session_index  UInt32 COMMENT 'From 1; in the held-out phase, the number of the problem' CODEC(T64, ZSTD(1)),
    turn_index     UInt32 COMMENT '0: the first reply, which counts' CODEC(T64, ZSTD(1)),
    problem        String CODEC(ZSTD(1)),
    reply          String CODEC(ZSTD(1)),
    tokens         UInt32 CODEC(T64, ZSTD(1)),
    policy_version String CODEC(ZSTD(1)),
    complaint      String COMMENT 'What the persona did not like; empty: the preference holds' CODEC(ZSTD(1)),
    guard          String COMMENT 'Why the reply does not count whatever its form; empty: it counts' CODEC(ZSTD(1)),
    satisfied      Bool CODEC(ZSTD(1)),
    base_logprob   Nullable(Float64) COMMENT 'Mean log-prob of a token under the base model at temperature 1, nats' CODEC(ZSTD(1)),
    seconds        Float64 COMMENT 'How long the reply took' CODEC(ZSTD(1)),
    event_time     Nullable(DateTime64(6, 'UTC')) COMMENT 'When it happened, as the producer says' CODEC(ZSTD(1)),
    record_time    DateTime64(3, 'UTC') COMMENT 'Time of the record in the log' CODEC(Delta, ZSTD(1)),
    topic          LowCardinality(String) DEFAULT 'evaluations',
    partition      UInt32,
    offset         UInt64 CODEC(Delta, ZSTD(1)),
    ingest_time    DateTime64(3, 'UTC') DEFAULT now64(3, 'UTC') COMMENT 'When ClickHouse got it' CODEC(Delta, ZSTD(1)),
    INDEX offset_range offset TYPE minmax GRANULARITY 1
)
ENGINE = MergeTree ORDER BY (tenant, session, partition, offset)
SETTINGS non_replicated_deduplication_window = 10000
COMMENT 'One reply to a persona, judged; one row a reply';

CREATE TABLE IF NOT EXISTS evaluation_ended
(
    tenant      LowCardinality(String),
    session     String CODEC(ZSTD(1)),
    event_id    UUID CODEC(ZSTD(1)),
    source      LowCardinality(String) COMMENT 'Who wrote it',
    arm         LowCardinality(String),
    seed        UInt64 CODEC(T64, ZSTD(1)),
    outcome     LowCardinality(String) COMMENT 'aligned, sessions (the cap was reached) or time',
    sessions    UInt32 CODEC(T64, ZSTD(1)),
    aligned_at  Map(String, UInt32) COMMENT 'Session of the first of the satisfied first replies in a row, by persona, and "joint": the largest of them. Absent: not aligned' CODEC(ZSTD(1)),
    updates     UInt32 CODEC(T64, ZSTD(1)),
    seconds     Map(String, Float64) COMMENT 'Wall time by part' CODEC(ZSTD(1)),
    event_time  Nullable(DateTime64(6, 'UTC')) COMMENT 'When it happened, as the producer says' CODEC(ZSTD(1)),
    record_time DateTime64(3, 'UTC') COMMENT 'Time of the record in the log' CODEC(Delta, ZSTD(1)),
    topic       LowCardinality(String) DEFAULT 'evaluations',
    partition   UInt32,
    offset      UInt64 CODEC(Delta, ZSTD(1)),
    ingest_time DateTime64(3, 'UTC') DEFAULT now64(3, 'UTC') COMMENT 'When ClickHouse got it' CODEC(Delta, ZSTD(1)),
    INDEX offset_range offset TYPE minmax GRANULARITY 1
)
ENGINE = MergeTree ORDER BY (tenant, session, partition, offset)
SETTINGS non_replicated_deduplication_window = 10000
COMMENT 'One run of an arm of nextstate eval ended';
