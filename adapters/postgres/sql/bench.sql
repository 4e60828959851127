-- name: create_limit
-- A table like the log's, with its two indexes and nothing else.
create table bench_limit (
    position    bigint primary key,
    stream      text collate "C" not null,
    version     bigint not null,
    type        text collate "C" not null,
    schema      integer not null,
    body        bytea not null,
    metadata    bytea not null,
    request_id  uuid not null,
    recorded_at timestamptz not null default clock_timestamp(),
    unique (stream, version)
)

-- name: insert_limit
-- As many rows as the arrays have.
insert into bench_limit (position, stream, version, type, schema, body, metadata, request_id)
select * from unnest(%b, %b, %b, %b, %b, %b, %b, %b)

-- name: drop
-- Leave nothing behind.
drop schema {schema} cascade;
drop schema {views} cascade;
drop role if exists {role}
