-- The history: every record once, byte for byte, and one typed table for each kind of event.
--
-- Rules that all tables share:
--   * non_replicated_deduplication_window: a repeated insert with the same token adds nothing.
--   * One insert is one block of one range of one partition of a topic, so there is no PARTITION BY: a block must not be split.
--   * topic and ingest_time are filled in by the server: they cost the sink nothing.
--   * The minmax index on offset finds the rows of a range when a successor asks whether they are there.

CREATE TABLE IF NOT EXISTS events
(
    topic         LowCardinality(String),
    partition     UInt32,
    offset        UInt64 CODEC(DoubleDelta, ZSTD(1)),
    record_ms     Int64 COMMENT 'Time of the record in milliseconds, exactly as the log gave it' CODEC(DoubleDelta, ZSTD(1)),
    record_time   DateTime64(3, 'UTC') COMMENT 'Time of the record in the log' CODEC(DoubleDelta, ZSTD(1)),
    key           String CODEC(ZSTD(1)),
    header_keys   Array(String) CODEC(ZSTD(1)),
    header_values Array(String) CODEC(ZSTD(1)),
    value         String COMMENT 'The payload in Protobuf, as it was appended' CODEC(ZSTD(1)),
    bytes         UInt32 COMMENT 'Size of key, headers and value' CODEC(T64, ZSTD(1)),
    kind          LowCardinality(String) COMMENT 'Kind of the event; empty: the record could not be decoded, see dead_letters',
    event_id      UUID COMMENT 'All zero when kind is empty' CODEC(ZSTD(1)),
    source        LowCardinality(String),
    tenant        LowCardinality(String),
    session       String CODEC(ZSTD(1)),
    event_time    Nullable(DateTime64(6, 'UTC')) COMMENT 'When it happened, as the producer says' CODEC(ZSTD(1)),
    ingest_time   DateTime64(3, 'UTC') DEFAULT now64(3, 'UTC') COMMENT 'When ClickHouse got it' CODEC(DoubleDelta, ZSTD(1)),
    headers       Map(String, String) ALIAS mapFromArrays(header_keys, header_values),
    INDEX event_id_bloom event_id TYPE bloom_filter(0.001) GRANULARITY 1
)
ENGINE = MergeTree ORDER BY (topic, partition, offset)
SETTINGS non_replicated_deduplication_window = 10000
COMMENT 'Every record of the log once, byte for byte; replay reads it';

CREATE TABLE IF NOT EXISTS messages
(
    tenant          LowCardinality(String),
    hash            UUID COMMENT 'First 16 bytes of the SHA-256 of raw' CODEC(ZSTD(1)),
    role            LowCardinality(String),
    name            Nullable(String) CODEC(ZSTD(1)),
    text            String COMMENT 'All text parts, joined by a line break' CODEC(ZSTD(1)),
    refusal         String CODEC(ZSTD(1)),
    reasoning       Nullable(String) CODEC(ZSTD(1)),
    tool_call_id    Nullable(String) COMMENT 'The call that a tool message answers' CODEC(ZSTD(1)),
    call_ids        Array(String) CODEC(ZSTD(1)),
    call_names      Array(String) CODEC(ZSTD(1)),
    call_arguments  Array(String) CODEC(ZSTD(1)),
    blob_types      Array(String) COMMENT 'Media types of the parts that are not text' CODEC(ZSTD(1)),
    raw             String COMMENT 'nextstate.v1.Message' CODEC(ZSTD(1))
)
ENGINE = ReplacingMergeTree ORDER BY (tenant, hash)
SETTINGS non_replicated_deduplication_window = 10000
COMMENT 'Each message of a tenant once, by content. Until parts are merged one can stand here twice: join with ANY';

CREATE TABLE IF NOT EXISTS tools
(
    tenant      LowCardinality(String),
    hash        UUID COMMENT 'First 16 bytes of the SHA-256 of raw' CODEC(ZSTD(1)),
    name        String CODEC(ZSTD(1)),
    description Nullable(String) CODEC(ZSTD(1)),
    parameters  Nullable(String) COMMENT 'JSON Schema' CODEC(ZSTD(1)),
    raw         String COMMENT 'nextstate.v1.Tool' CODEC(ZSTD(1))
)
ENGINE = ReplacingMergeTree ORDER BY (tenant, hash)
SETTINGS non_replicated_deduplication_window = 10000
COMMENT 'Each tool definition of a tenant once, by content. Join with ANY';
