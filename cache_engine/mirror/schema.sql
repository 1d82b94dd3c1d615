-- The mirror of a store. Disposable: everything here comes from the store's files and can be built again.
-- No primary keys: sync keeps rows unique, and a key would double size and time.

CREATE TABLE kernels (
    key              VARCHAR,
    name             VARCHAR,
    family           VARCHAR,
    compiler         VARCHAR,
    compiler_version VARCHAR,
    toolchain        VARCHAR,    -- compiler, version and build, as they enter the key
    arch             VARCHAR,
    dtype            VARCHAR,
    out_dtype        VARCHAR,
    layout           VARCHAR,
    m                BIGINT,     -- as first asked; the kernel serves every m
    n                BIGINT,
    k                BIGINT,
    batch            BIGINT,
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
    search_text      VARCHAR,    -- what a search looks through, in lower case
    stamp            VARCHAR     -- the record file's inode, size and time: tells whether it must be read again
);

CREATE TABLE usage (
    key          VARCHAR,
    made_at      DOUBLE,         -- created_at of the kernel it is the usage of
    memory_hits  BIGINT,
    pack_hits    BIGINT,
    disk_hits    BIGINT,
    last_used_at DOUBLE
);

CREATE TABLE events (
    happened_at  DOUBLE,
    kind         VARCHAR,
    key          VARCHAR,
    compile_ms   DOUBLE,
    stored_bytes BIGINT,
    detail       VARCHAR,
    done_by      VARCHAR     -- of what somebody did to the whole store: who
);

CREATE TABLE totals (
    memory_hits      BIGINT,
    pack_hits        BIGINT,
    disk_hits        BIGINT,
    misses           BIGINT,
    saved_us         BIGINT,
    compiles         BIGINT,
    compile_us       BIGINT,
    publish_failures BIGINT,
    corruptions      BIGINT,
    tier_failures    BIGINT,
    evictions        BIGINT,
    evicted_bytes    BIGINT,
    last_publish_at  DOUBLE
);

-- Records that are there but cannot be mirrored, and why.
CREATE TABLE unreadable (
    key   VARCHAR,
    stamp VARCHAR,
    cause VARCHAR
);

-- Where the last sync got to.
CREATE TABLE shards (shard VARCHAR, mtime_ns BIGINT);
CREATE TABLE journal_positions (stem VARCHAR, position BIGINT);
CREATE TABLE sync_state (schema_version VARCHAR, generation BIGINT, snapshot_generation BIGINT, synced_at DOUBLE);
