-- The mirror of a store. Disposable: everything here comes from the store's files and can be built again.
-- Names in braces are structs of the model: sync writes a column for each of their fields.
-- No primary keys: sync keeps rows unique, and a key would double size and time.
-- Tables with a comment, at the end, are for the SQL of users, which lists them. Columns of one name mean the same in
-- all tables, so one comment is enough.

CREATE TABLE kernels (
    key              VARCHAR,
    name             VARCHAR,
    family           VARCHAR,
    compiler         VARCHAR,
    compiler_version VARCHAR,
    toolchain        VARCHAR,
    key_schema       VARCHAR,
    template         VARCHAR,
    flags            VARCHAR,
    arch             VARCHAR,
    {RecordedProblem},
    config           VARCHAR,
    registers        INTEGER,
    shared_bytes     BIGINT,
    stack_bytes      BIGINT,
    spill_bytes      BIGINT,
    size_bytes       BIGINT,
    stored_bytes     BIGINT,
    compile_ms       DOUBLE,
    created_at       DOUBLE,
    created_by       VARCHAR,
    framework        VARCHAR,
    version          VARCHAR,
    parts_bytes      BIGINT,
    search_text      VARCHAR,
    shard            VARCHAR,
    stamp            VARCHAR
);

CREATE VIEW ours AS SELECT * FROM kernels WHERE framework IS NULL;

CREATE TABLE usage (
    key          VARCHAR,
    made_at      DOUBLE,
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
    done_by      VARCHAR
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

CREATE TABLE periods (
    start            BIGINT,
    seconds          BIGINT,
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
    remote_dropped   BIGINT,
    lookups_0        BIGINT,
    lookups_1        BIGINT,
    lookups_2        BIGINT,
    lookups_3        BIGINT,
    lookups_4        BIGINT,
    lookups_5        BIGINT
);

CREATE TABLE misses (arch VARCHAR, misses BIGINT);

CREATE TABLE demand (
    start          BIGINT,
    seconds        BIGINT,
    {Shape},
    m              BIGINT,
    power          BIGINT,
    requests       DOUBLE
);

-- What there was no room for, in each period.
CREATE TABLE demand_dropped (start BIGINT, seconds BIGINT, requests DOUBLE);

-- Of which demand.json it is, when that began to count, and how far the journal's files were read.
CREATE TABLE demand_read (generation BIGINT, since DOUBLE);
CREATE TABLE demand_positions (stem VARCHAR, position BIGINT);

CREATE TABLE spans (name VARCHAR, count BIGINT);

CREATE TABLE timings (
    key                 VARCHAR,
    family              VARCHAR,
    compiler            VARCHAR,
    arch                VARCHAR,
    config              VARCHAR,
    config_from         VARCHAR,
    {RecordedProblem},
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
    measured_at         DOUBLE,
    measured_by         VARCHAR,
    timing              VARCHAR
);

CREATE VIEW kernel_times AS
SELECT DISTINCT ON (timings.key) timings.key, device, median_us, tflops, speed_ratio, measured_at
FROM timings JOIN kernels USING (key, m, batch) WHERE verified ORDER BY timings.key, measured_at DESC, timing;

-- Tags are separated by spaces.
CREATE TABLE notes (key VARCHAR, note VARCHAR, tags VARCHAR);

-- When their folder changed last, in nanoseconds; no row while it must be looked at again.
CREATE TABLE notes_read (state VARCHAR);

-- The state of the files they are from; no row while it must be looked at again.
CREATE TABLE timings_read (state VARCHAR);

CREATE TABLE unreadable (
    key   VARCHAR,
    stamp VARCHAR,
    cause VARCHAR,
    shard VARCHAR
);

CREATE TABLE skipped (
    source VARCHAR,
    name   VARCHAR,
    rows   BIGINT,
    cause  VARCHAR
);

-- What is in the caches of other frameworks, as of the last scan. From no file of the store: a scan brings it again.
CREATE TABLE foreign_places (kind VARCHAR, path VARCHAR, origin VARCHAR);

CREATE TABLE foreign_entries (
    kind         VARCHAR,
    path         VARCHAR,
    id           VARCHAR,
    stamp        VARCHAR,
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
    created_at   DOUBLE,
    last_used_at DOUBLE,
    digest       VARCHAR,
    size_bytes   BIGINT,
    source_bytes BIGINT,
    ir_bytes     BIGINT,
    ptx_bytes    BIGINT,
    binary_bytes BIGINT,
    config       VARCHAR,
    parts        VARCHAR,
    unread       VARCHAR,
    search_text  VARCHAR
);

-- Their parts; those that are no part of a kernel by their kind.
CREATE TABLE foreign_parts (kind VARCHAR, path VARCHAR, id VARCHAR, name VARCHAR, size_bytes BIGINT);

CREATE TABLE foreign_findings (kind VARCHAR, path VARCHAR, id VARCHAR, fault VARCHAR, detail VARCHAR);

CREATE TABLE foreign_diagnoses (kind VARCHAR, path VARCHAR, id VARCHAR, ailment VARCHAR, detail VARCHAR);

-- Where the last sync got to.
CREATE TABLE shards (shard VARCHAR, mtime_ns BIGINT);
CREATE TABLE journal_positions (stem VARCHAR, position BIGINT);
CREATE TABLE sync_state (schema_version VARCHAR, generation BIGINT, snapshot_generation BIGINT, synced_at DOUBLE);

COMMENT ON TABLE kernels IS 'Kernels in the store; of those that other frameworks keep there, much is not known.';
COMMENT ON VIEW ours IS 'The rows of kernels that were compiled here.';
COMMENT ON TABLE usage IS 'Hits of kernels, by key and made_at: join both, a kernel made again starts at zero.';
COMMENT ON TABLE events IS 'Latest events other than hits: compiles, evictions, damage, and who cleaned or imported.';
COMMENT ON TABLE totals IS 'Sums of all events since the store exists; one row.';
COMMENT ON TABLE periods IS 'The sums of totals by time; overlapping periods count different events.';
COMMENT ON TABLE misses IS 'Lookups that had to compile, by target.';
COMMENT ON TABLE demand IS 'How often each shape was asked for, by period and m.';
COMMENT ON TABLE spans IS 'How many steps of lookups and compiles took how long.';
COMMENT ON TABLE timings IS 'Measured times of kernels, also of kernels that were deleted since.';
COMMENT ON TABLE notes IS 'Notes and tags of kernels, also of kernels that were deleted since.';
COMMENT ON VIEW kernel_times IS 'The latest correct timing of each kernel in the store, for the m that it was first asked for.';
COMMENT ON TABLE unreadable IS 'Records and files that are in the store but not in this index, and why.';
COMMENT ON TABLE skipped IS 'Lines of the journal and timings that are not in this index, and why.';
COMMENT ON TABLE foreign_entries IS 'Entries in the caches of other frameworks, as of the last scan.';
COMMENT ON TABLE foreign_findings IS 'What is damaged in the caches of other frameworks, as of the last scan.';
COMMENT ON TABLE foreign_diagnoses IS 'What the doctor finds in the caches of other frameworks; id is empty for a directory.';

COMMENT ON COLUMN kernels.key IS 'hash of all inputs; names the kernel';
COMMENT ON COLUMN kernels.name IS 'name of the kernel';
COMMENT ON COLUMN kernels.family IS 'family of kernels, such as tensor_core';
COMMENT ON COLUMN kernels.compiler IS 'nvrtc, nvcc or triton';
COMMENT ON COLUMN kernels.compiler_version IS 'version of the compiler';
COMMENT ON COLUMN kernels.toolchain IS 'compiler, version, build and environment, as they enter the key';
COMMENT ON COLUMN kernels.key_schema IS 'version of the rules that make keys';
COMMENT ON COLUMN kernels.template IS 'digest of the family''s template';
COMMENT ON COLUMN kernels.flags IS 'flags of the compiler';
COMMENT ON COLUMN kernels.arch IS 'target, such as sm_90a';
COMMENT ON COLUMN kernels.m IS 'rows of A and C, as first asked: most kernels serve every m';
COMMENT ON COLUMN kernels.n IS 'columns of B and C';
COMMENT ON COLUMN kernels.k IS 'columns of A';
COMMENT ON COLUMN kernels.config IS 'tile, stages and warps that were chosen';
COMMENT ON COLUMN kernels.registers IS 'registers of a thread';
COMMENT ON COLUMN kernels.shared_bytes IS 'shared memory of a block';
COMMENT ON COLUMN kernels.stack_bytes IS 'stack of a thread';
COMMENT ON COLUMN kernels.spill_bytes IS 'registers spilled to memory by a thread, in bytes';
COMMENT ON COLUMN kernels.size_bytes IS 'size of the compiled code; of an entry of another framework, of all parts';
COMMENT ON COLUMN kernels.stored_bytes IS 'size on disk; of an event, the bytes that it deleted or stored';
COMMENT ON COLUMN kernels.compile_ms IS 'compile time in milliseconds';
COMMENT ON COLUMN kernels.created_at IS 'seconds since 1970; to_timestamp(created_at) is a time in UTC';
COMMENT ON COLUMN kernels.created_by IS 'program that compiled it';
COMMENT ON COLUMN kernels.framework IS 'other framework that keeps it here; NULL if it was compiled here';
COMMENT ON COLUMN kernels.version IS 'version of that framework';
COMMENT ON COLUMN kernels.parts_bytes IS 'size of all its files there';
COMMENT ON COLUMN kernels.search_text IS 'what a search looks through, in lower case';
COMMENT ON COLUMN kernels.shard IS 'folder of its record';
COMMENT ON COLUMN kernels.stamp IS 'inode, size and time of the file: shows whether it must be read again';
COMMENT ON COLUMN notes.note IS 'what people wrote';
COMMENT ON COLUMN notes.tags IS 'tags, sorted, with spaces between';
COMMENT ON COLUMN usage.made_at IS 'created_at of the kernel';
COMMENT ON COLUMN usage.memory_hits IS 'hits in memory';
COMMENT ON COLUMN usage.pack_hits IS 'hits in packs';
COMMENT ON COLUMN usage.disk_hits IS 'hits on disk';
COMMENT ON COLUMN usage.remote_hits IS 'hits in the remote';
COMMENT ON COLUMN usage.last_used_at IS 'time of the last hit, in seconds since 1970';
COMMENT ON COLUMN events.happened_at IS 'seconds since 1970';
COMMENT ON COLUMN events.kind IS 'kind of event, or of cache';
COMMENT ON COLUMN events.detail IS 'the reason, or more about it';
COMMENT ON COLUMN events.done_by IS 'who acted, for actions on the whole store';
COMMENT ON COLUMN totals.misses IS 'lookups that had to compile';
COMMENT ON COLUMN totals.saved_us IS 'compile time saved, in microseconds';
COMMENT ON COLUMN totals.compiles IS 'compiled kernels';
COMMENT ON COLUMN totals.compile_us IS 'their compile time, in microseconds';
COMMENT ON COLUMN totals.publish_failures IS 'kernels that could not be stored';
COMMENT ON COLUMN totals.corruptions IS 'damaged entries found';
COMMENT ON COLUMN totals.tier_failures IS 'failures of a tier, such as the remote';
COMMENT ON COLUMN totals.evictions IS 'deleted kernels';
COMMENT ON COLUMN totals.evicted_bytes IS 'their size';
COMMENT ON COLUMN totals.last_publish_at IS 'time of the last stored kernel, in seconds since 1970';
COMMENT ON COLUMN totals.lock_waits IS 'waits for another process';
COMMENT ON COLUMN totals.lock_timeouts IS 'waits that ended without the lock';
COMMENT ON COLUMN totals.lock_wait_us IS 'time of all waits, in microseconds';
COMMENT ON COLUMN totals.promotions IS 'kernels compiled ahead for one shape, or promoted again';
COMMENT ON COLUMN totals.demotions IS 'kernels demoted';
COMMENT ON COLUMN totals.remote_sent IS 'kernels sent to the remote';
COMMENT ON COLUMN totals.remote_dropped IS 'kernels that were not sent';
COMMENT ON COLUMN periods.start IS 'begin of the period, in seconds since 1970';
COMMENT ON COLUMN periods.seconds IS 'length of the period';
COMMENT ON COLUMN periods.lookups_0 IS 'hits that took less than 4 µs';
COMMENT ON COLUMN periods.lookups_1 IS 'hits that took up to 66 µs';
COMMENT ON COLUMN periods.lookups_2 IS 'hits that took up to 1 ms';
COMMENT ON COLUMN periods.lookups_3 IS 'hits that took up to 17 ms';
COMMENT ON COLUMN periods.lookups_4 IS 'hits that took up to 268 ms';
COMMENT ON COLUMN periods.lookups_5 IS 'hits that took longer';
COMMENT ON COLUMN demand.power IS 'if m is 0: the m are at most 2 ** power, and above half of that';
COMMENT ON COLUMN demand.requests IS 'number of lookups';
COMMENT ON COLUMN spans.count IS 'number of steps';
COMMENT ON COLUMN timings.config_from IS 'where the config came from';
COMMENT ON COLUMN timings.device IS 'name of the GPU';
COMMENT ON COLUMN timings.device_fingerprint IS 'digest of what can change its speed';
COMMENT ON COLUMN timings.driver IS 'version of its driver';
COMMENT ON COLUMN timings.median_us IS 'median time in microseconds';
COMMENT ON COLUMN timings.p10_us IS 'a tenth of the runs was faster';
COMMENT ON COLUMN timings.p90_us IS 'a tenth of the runs was slower';
COMMENT ON COLUMN timings.tflops IS 'speed, in 10^12 operations a second';
COMMENT ON COLUMN timings.reference_median_us IS 'median time of the library, in microseconds';
COMMENT ON COLUMN timings.speed_ratio IS 'the library''s time divided by the kernel''s';
COMMENT ON COLUMN timings.max_rel_error IS 'largest relative error of the result';
COMMENT ON COLUMN timings.verified IS 'whether the result was correct';
COMMENT ON COLUMN timings.measured_at IS 'seconds since 1970';
COMMENT ON COLUMN timings.measured_by IS 'program that measured it';
COMMENT ON COLUMN timings.timing IS 'all that was measured, as JSON';
COMMENT ON COLUMN unreadable.cause IS 'why it is not in this index';
COMMENT ON COLUMN skipped.source IS 'journal, timings or notes';
COMMENT ON COLUMN skipped.rows IS 'how many';
COMMENT ON COLUMN foreign_entries.path IS 'directory of the cache';
COMMENT ON COLUMN foreign_entries.id IS 'name of the entry in its cache';
COMMENT ON COLUMN foreign_entries.state IS 'state of the entry';
COMMENT ON COLUMN foreign_entries.code_bytes IS 'size of the compiled code';
COMMENT ON COLUMN foreign_entries.digest IS 'digest of the binary';
COMMENT ON COLUMN foreign_entries.source_bytes IS 'size of the source';
COMMENT ON COLUMN foreign_entries.ir_bytes IS 'size of intermediate code';
COMMENT ON COLUMN foreign_entries.ptx_bytes IS 'size of PTX';
COMMENT ON COLUMN foreign_entries.binary_bytes IS 'size of the binary';
COMMENT ON COLUMN foreign_entries.parts IS 'its files, as JSON';
COMMENT ON COLUMN foreign_entries.unread IS 'facts that are not known, and why, as JSON';
COMMENT ON COLUMN foreign_findings.fault IS 'kind of damage';
COMMENT ON COLUMN foreign_diagnoses.ailment IS 'what is wrong';
