-- The mirror of a store. Disposable: everything here comes from the store's files and can be built again.
-- Names in braces are structs of the model: sync writes a column for each of their fields.
-- No primary keys: sync keeps rows unique, and a key would double size and time.

-- Also those that other frameworks keep in the store, of which much is not known.
CREATE TABLE kernels (
    key              VARCHAR,
    name             VARCHAR,
    family           VARCHAR,
    compiler         VARCHAR,
    compiler_version VARCHAR,
    toolchain        VARCHAR,    -- compiler, version, build and environment, as they enter the key; and so do
    key_schema       VARCHAR,
    template         VARCHAR,    -- the digest of the family's template and
    flags            VARCHAR,    -- the compiler's
    arch             VARCHAR,
    {RecordedProblem},           -- its fields; m is as first asked: the kernel serves every m
    config           VARCHAR,
    registers        INTEGER,
    shared_bytes     BIGINT,
    stack_bytes      BIGINT,
    spill_bytes      BIGINT,
    size_bytes       BIGINT,     -- of the compiled code
    stored_bytes     BIGINT,     -- on disk, of blob and record
    compile_ms       DOUBLE,
    created_at       DOUBLE,     -- seconds since 1970, UTC
    created_by       VARCHAR,
    framework        VARCHAR,    -- which of the others keeps it here; NULL where it was compiled here
    version          VARCHAR,    -- of that framework
    parts_bytes      BIGINT,     -- of all of its files there
    search_text      VARCHAR,    -- what a search looks through, in lower case
    shard            VARCHAR,    -- the folder that its record, or its file, is in
    stamp            VARCHAR     -- that file's inode, size and time: shows whether it must be read again
);

-- Those that were compiled here.
CREATE VIEW ours AS SELECT * FROM kernels WHERE framework IS NULL;

CREATE TABLE usage (
    key          VARCHAR,
    made_at      DOUBLE,         -- created_at of the kernel it is the usage of
    memory_hits  BIGINT,
    pack_hits    BIGINT,
    disk_hits    BIGINT,
    remote_hits  BIGINT,
    last_used_at DOUBLE
);

CREATE TABLE events (
    happened_at  DOUBLE,
    kind         VARCHAR,
    key          VARCHAR,
    compile_ms   DOUBLE,
    stored_bytes BIGINT,
    detail       VARCHAR,
    done_by      VARCHAR     -- who acted, for acts on the whole store
);

CREATE TABLE totals (
    memory_hits      BIGINT,
    pack_hits        BIGINT,
    disk_hits        BIGINT,
    remote_hits      BIGINT,
    misses           BIGINT,
    saved_us         BIGINT,
    compiles         BIGINT,
    compile_us       BIGINT,
    publish_failures BIGINT,
    corruptions      BIGINT,
    tier_failures    BIGINT,
    evictions        BIGINT,
    evicted_bytes    BIGINT,
    last_publish_at  DOUBLE,
    lock_waits       BIGINT,
    lock_timeouts    BIGINT,
    lock_wait_us     BIGINT,
    promotions       BIGINT,
    demotions        BIGINT,
    remote_sent      BIGINT,
    remote_dropped   BIGINT
);

-- The same sums by time. Periods of different length count different events, also where one lies within another.
CREATE TABLE periods (
    start            BIGINT,     -- seconds since 1970, UTC
    seconds          BIGINT,     -- how long it is
    memory_hits      BIGINT,
    pack_hits        BIGINT,
    disk_hits        BIGINT,
    remote_hits      BIGINT,
    misses           BIGINT,
    saved_us         BIGINT,
    compiles         BIGINT,
    compile_us       BIGINT,
    publish_failures BIGINT,
    corruptions      BIGINT,
    tier_failures    BIGINT,
    lock_waits       BIGINT,
    lock_timeouts    BIGINT,
    lock_wait_us     BIGINT,
    promotions       BIGINT,
    demotions        BIGINT,
    remote_sent      BIGINT,
    remote_dropped   BIGINT
);

-- Lookups that had to compile, by the target asked for.
CREATE TABLE misses (arch VARCHAR, misses BIGINT);

-- What was asked for: how often each m of a shape in each period, and by power of two where no more is known.
CREATE TABLE demand (
    start          BIGINT,     -- as of periods
    seconds        BIGINT,
    {Shape},                   -- its fields
    m              BIGINT,     -- 0: several, which the histogram has
    power          BIGINT,     -- these m are at most 2 ** power, and above half of that
    requests       DOUBLE
);

-- What there was no room for, in each period.
CREATE TABLE demand_dropped (start BIGINT, seconds BIGINT, requests DOUBLE);

-- Of which demand.json it is, when that began to count, and how far the journal's files were read.
CREATE TABLE demand_read (generation BIGINT, since DOUBLE);
CREATE TABLE demand_positions (stem VARCHAR, position BIGINT);

-- How long things took: see store/journal/spans.py.
CREATE TABLE spans (name VARCHAR, count BIGINT);

-- Measurements of kernels, also of those that were evicted since.
CREATE TABLE timings (
    key                 VARCHAR,
    family              VARCHAR,
    compiler            VARCHAR,
    arch                VARCHAR,
    config              VARCHAR,
    config_from         VARCHAR,
    {RecordedProblem},              -- its fields
    device              VARCHAR,
    device_fingerprint  VARCHAR,
    driver              VARCHAR,
    median_us           DOUBLE,
    p10_us              DOUBLE,
    p90_us              DOUBLE,
    tflops              DOUBLE,
    reference_median_us DOUBLE,
    speed_ratio         DOUBLE,
    max_rel_error       DOUBLE,
    verified            BOOLEAN,
    measured_at         DOUBLE,     -- seconds since 1970, UTC
    measured_by         VARCHAR,
    timing              VARCHAR     -- JSON: all that was measured
);

-- The state of the files they are from; no row while it must be looked at again.
CREATE TABLE timings_read (state VARCHAR);

-- Records, and files of other frameworks' kernels, that are there but cannot be mirrored, and why.
CREATE TABLE unreadable (
    key   VARCHAR,
    stamp VARCHAR,
    cause VARCHAR,
    shard VARCHAR     -- as of kernels
);

-- What else is there but cannot be mirrored: damaged lines of the journal, timings with invalid values. Results of the
-- evaluator have a cause of their own.
CREATE TABLE skipped (
    source VARCHAR,     -- journal or timings
    name   VARCHAR,     -- of the file, or of the row
    rows   BIGINT,      -- how many
    cause  VARCHAR
);

-- What is in the caches of other frameworks, as of the last scan. From no file of the store: a scan brings it again.
CREATE TABLE foreign_places (kind VARCHAR, path VARCHAR, origin VARCHAR);

CREATE TABLE foreign_entries (
    kind         VARCHAR,
    path         VARCHAR,     -- of the directory
    id           VARCHAR,     -- in it
    stamp        VARCHAR,     -- shows whether it must be read again
    state        VARCHAR,
    name         VARCHAR,
    version      VARCHAR,
    compiler     VARCHAR,
    arch         VARCHAR,
    registers    INTEGER,
    shared_bytes BIGINT,
    stack_bytes  BIGINT,
    spill_bytes  BIGINT,
    code_bytes   BIGINT,
    compile_ms   DOUBLE,
    created_at   DOUBLE,      -- seconds since 1970, UTC
    last_used_at DOUBLE,
    digest       VARCHAR,     -- of the binary
    size_bytes   BIGINT,      -- of all parts
    source_bytes BIGINT,
    ir_bytes     BIGINT,
    ptx_bytes    BIGINT,
    binary_bytes BIGINT,
    config       VARCHAR,     -- JSON
    parts        VARCHAR,     -- JSON
    unread       VARCHAR,     -- JSON: of facts that are not known the reason
    search_text  VARCHAR      -- what a search looks through, in lower case
);

-- Their parts; those that are no part of a kernel by their kind.
CREATE TABLE foreign_parts (kind VARCHAR, path VARCHAR, id VARCHAR, name VARCHAR, size_bytes BIGINT);

CREATE TABLE foreign_findings (kind VARCHAR, path VARCHAR, id VARCHAR, fault VARCHAR, detail VARCHAR);

-- What the doctor finds wrong with what could be read. The id is empty for a directory itself.
CREATE TABLE foreign_diagnoses (kind VARCHAR, path VARCHAR, id VARCHAR, ailment VARCHAR, detail VARCHAR);

-- Where the last sync got to.
CREATE TABLE shards (shard VARCHAR, mtime_ns BIGINT);
CREATE TABLE journal_positions (stem VARCHAR, position BIGINT);
CREATE TABLE sync_state (schema_version VARCHAR, generation BIGINT, snapshot_generation BIGINT, synced_at DOUBLE);
