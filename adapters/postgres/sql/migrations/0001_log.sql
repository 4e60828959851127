-- The truth: one append-only table. Positions are gapless, so a hole is tampering; recorded_at never falls.
-- The collation is fixed to "C": stream ids are names, not text of a language, and an index must not depend on a locale.
create table event (
    position    bigint      primary key,
    stream      text        collate "C" not null,
    version     bigint      not null,
    type        text        collate "C" not null,
    schema      integer     not null,
    body        bytea       not null,
    metadata    bytea       not null,
    request_id  uuid        not null,
    recorded_at timestamptz not null,
    constraint event_position_starts_at_one check (position > 0),
    constraint event_version_is_not_negative check (version >= 0),
    constraint event_stream_version unique (stream, version)
);

-- lz4 is three times faster on large bodies; a server built without it keeps its default.
do $$
begin
    alter table event alter column body set compression lz4;
exception when feature_not_supported or invalid_parameter_value then null;
end $$;

-- Nobody changes what was recorded, the owner of the table included.
create function refuse_change() returns trigger language plpgsql as $$
begin
    raise exception 'the log is append-only: % on % is refused', tg_op, tg_table_name using errcode = 'TK001';
end $$;
create trigger event_append_only before update or delete or truncate on event
    for each statement execute function refuse_change();
alter table event enable always trigger event_append_only;

-- Texts that can be erased; the event holds an HMAC of the text under the salt. Bytes (UTF-8), because text cannot hold NUL.
create table content (
    id   text  collate "C" primary key,
    text bytea not null,
    salt bytea not null
);

-- One primitive for everything that only one may do. expires_at null: nobody holds it. The epoch never falls.
create table lease (
    scope      text        collate "C" primary key,
    epoch      bigint      not null,
    lease_id   text        not null,
    holder     json        not null,
    token_hash bytea       not null,
    expires_at timestamptz
);
create function keep_epoch() returns trigger language plpgsql as $$
begin
    if new.epoch < old.epoch then
        raise exception 'the epoch of lease % must not fall', old.scope using errcode = 'TK002';
    end if;
    return new;
end $$;
create trigger lease_epoch_never_falls before update on lease for each row execute function keep_epoch();

-- Waiting tasks. A task that no longer waits (available_at null) stays, so that it keeps its place when it comes back.
create table queue (
    task         text        collate "C" primary key,
    repo         text        collate "C" not null,
    session      text        collate "C" not null,
    position     bigint      not null,
    ordinal      integer     not null,
    available_at timestamptz
);
create index queue_order on queue (repo, position, ordinal) where available_at is not null;
create index queue_session on queue (session, position, ordinal) where available_at is not null;
create index queue_time on queue (available_at) where available_at is not null;

-- The identity of this log, and the name of the role that the service runs under (absent: the server allowed none).
create table meta (
    key   text primary key,
    value text not null
);
insert into meta (key, value) values ('log_id', gen_random_uuid()::text);
