-- name: role
-- The role of the service, in the schema of the log.
select value from meta where key = 'service_role'

-- name: lock
-- One process prepares at a time.
select pg_advisory_xact_lock(hashtextextended('turnkeeper views ' || current_schema(), 0))

-- name: create
-- Two tables for all read models; both can be dropped at any time, the log fills them again. Documents are json, not
-- jsonb, since texts may hold escaped NULs; the collation is "C", so that the order is the program's own.
create table if not exists read_model (
    name       text    collate "C" not null,
    generation integer not null,
    version    integer not null,
    position   bigint  not null default 0,
    live       boolean not null default false,
    primary key (name, generation)
);
create unique index if not exists read_model_live on read_model (name) where live;
create table if not exists entry (
    view       text    collate "C" not null,
    generation integer not null,
    key        text    collate "C" not null,
    grp        text    collate "C" not null,
    ord        bigint  not null,
    repo       text    collate "C",
    resource   text    collate "C",
    task       text    collate "C",
    delivery   text    collate "C",
    turn       text    collate "C",
    comment    bigint,
    thread     text    collate "C",
    state      text    collate "C",
    author     bigint,
    at         timestamptz,
    doc        json    not null,
    primary key (view, generation, key)
);
create index if not exists entry_order on entry (view, generation, ord, key);
create index if not exists entry_group on entry (view, generation, grp) where grp <> '';
create index if not exists entry_repo on entry (view, generation, repo, ord) where repo is not null;
create index if not exists entry_resource on entry (view, generation, resource, ord) where resource is not null;
create index if not exists entry_task on entry (view, generation, task, ord) where task is not null;
create index if not exists entry_delivery on entry (view, generation, delivery) where delivery is not null;
create index if not exists entry_state on entry (view, generation, state, ord) where view <> 'audit'

-- name: models
-- Every generation of every view.
select name, generation, version, position, live from read_model order by name, generation

-- name: hold
-- The same, held until the end of the transaction: nobody else brings views forward meanwhile.
select name, generation, version, position, live from read_model order by name, generation for update

-- name: position
-- What every live view has reached.
select coalesce(min(position), 0) from read_model where live

-- name: add_generation
-- A new, empty generation.
insert into read_model (name, generation, version)
values (%(name)s, 1 + coalesce((select max(generation) from read_model where name = %(name)s), 0), %(version)s)
returning generation

-- name: unswitch
-- No generation is live.
update read_model set live = false where name = %(name)s and live

-- name: switch
-- This generation is live.
update read_model set live = true where name = %(name)s and generation = %(generation)s

-- name: drop_old_entries
-- What is not live goes.
delete from entry e using read_model m
 where m.name = %(name)s and not m.live and e.view = m.name and e.generation = m.generation

-- name: drop_old
-- Its record too.
delete from read_model where name = %(name)s and not live

-- name: load
-- All entries of the groups that a batch touches.
select e.view, e.generation, e.grp, e.key, e.ord, e.doc::text
  from unnest(%(views)s::text[], %(generations)s::integer[], %(groups)s::text[]) as w(view, generation, grp)
  join entry e on e.view = w.view and e.generation = w.generation and e.grp = w.grp and e.grp <> ''

-- name: save
-- What a batch changed.
insert into entry as e (view, generation, key, grp, ord, repo, resource, task, delivery, turn, comment, thread, state,
                        author, at, doc)
select view, generation, key, grp, ord, repo, resource, task, delivery, turn, comment, thread, state, author, at, doc::json
  from unnest(%(views)s::text[], %(generations)s::integer[], %(keys)s::text[], %(groups)s::text[], %(ords)s::bigint[],
              %(repo)s::text[], %(resource)s::text[], %(task)s::text[], %(delivery)s::text[], %(turn)s::text[],
              %(comment)s::bigint[], %(thread)s::text[], %(state)s::text[], %(author)s::bigint[],
              %(at)s::timestamptz[], %(docs)s::text[])
    as n(view, generation, key, grp, ord, repo, resource, task, delivery, turn, comment, thread, state, author, at, doc)
on conflict (view, generation, key) do update
   set (grp, repo, resource, task, delivery, turn, comment, thread, state, author, at, doc)
     = (excluded.grp, excluded.repo, excluded.resource, excluded.task, excluded.delivery, excluded.turn,
        excluded.comment, excluded.thread, excluded.state, excluded.author, excluded.at, excluded.doc)

-- name: advance
-- The views' positions, in the same transaction.
update read_model m set position = n.position
  from unnest(%(views)s::text[], %(generations)s::integer[], %(positions)s::bigint[]) as n(name, generation, position)
 where m.name = n.name and m.generation = n.generation

-- name: get
-- Live documents by key.
select e.key, e.doc::text
  from read_model m join entry e on e.view = m.name and e.generation = m.generation
 where m.name = %(view)s and m.live and e.key = any(%(keys)s::text[])

-- name: of_tasks
-- Live documents that belong to some tasks.
select e.doc::text
  from read_model m join entry e on e.view = m.name and e.generation = m.generation
 where m.name = %(view)s and m.live and e.task = any(%(tasks)s::text[])
 order by e.ord, e.key

-- name: authors
-- Everybody who has a task.
select distinct e.author
  from read_model m join entry e on e.view = m.name and e.generation = m.generation
 where m.name = 'tasks' and m.live and e.author is not null
 order by e.author

-- name: select
-- A page of a view.
select e.key, e.ord, e.doc::text
  from entry e
 where e.view = %(view)s
   and e.generation = coalesce(%(generation)s::integer, (select generation from read_model where name = %(view)s and live))
   and (%(repo)s::text is null or e.repo = %(repo)s::text)
   and (%(resource)s::text is null or e.resource = %(resource)s::text)
   and (%(task)s::text is null or e.task = %(task)s::text)
   and (%(delivery)s::text is null or e.delivery = %(delivery)s::text)
   and (%(turn)s::text is null or e.turn = %(turn)s::text)
   and (%(comment)s::bigint is null or e.comment = %(comment)s::bigint)
   and (%(thread)s::text is null or e.thread = %(thread)s::text)
   and (%(author)s::bigint is null or e.author = %(author)s::bigint)
   and (%(states)s::text[] is null or e.state = any(%(states)s::text[]))
   and (%(since)s::timestamptz is null or e.at >= %(since)s::timestamptz)
   and (%(until)s::timestamptz is null or e.at < %(until)s::timestamptz)
   and (%(after_ord)s::bigint is null or (e.ord, e.key) {beyond} (%(after_ord)s::bigint, %(after_key)s::text collate "C"))
 order by e.ord {direction}, e.key {direction}
 limit %(limit)s

-- name: select_through_tasks
-- The same, of entries that fulfil the conditions themselves or whose task does.
select e.key, e.ord, e.doc::text
  from entry e
 where e.view = %(view)s
   and e.generation = coalesce(%(generation)s::integer, (select generation from read_model where name = %(view)s and live))
   and (
        (    (%(repo)s::text is null or e.repo = %(repo)s::text)
         and (%(resource)s::text is null or e.resource = %(resource)s::text)
         and (%(task)s::text is null or e.task = %(task)s::text)
         and (%(delivery)s::text is null or e.delivery = %(delivery)s::text)
         and (%(turn)s::text is null or e.turn = %(turn)s::text)
         and (%(comment)s::bigint is null or e.comment = %(comment)s::bigint)
         and (%(thread)s::text is null or e.thread = %(thread)s::text)
         and (%(author)s::bigint is null or e.author = %(author)s::bigint))
        or e.task in (
            select t.key from entry t
             where t.view = 'tasks'
               and t.generation = (select generation from read_model where name = 'tasks' and live)
               and (%(repo)s::text is null or t.repo = %(repo)s::text)
               and (%(resource)s::text is null or t.resource = %(resource)s::text)
               and (%(task)s::text is null or t.task = %(task)s::text)
               and (%(delivery)s::text is null or t.delivery = %(delivery)s::text)
               and (%(turn)s::text is null or t.turn = %(turn)s::text)
               and (%(comment)s::bigint is null or t.comment = %(comment)s::bigint)
               and (%(thread)s::text is null or t.thread = %(thread)s::text)
               and (%(author)s::bigint is null or t.author = %(author)s::bigint)))
   and (%(states)s::text[] is null or e.state = any(%(states)s::text[]))
   and (%(since)s::timestamptz is null or e.at >= %(since)s::timestamptz)
   and (%(until)s::timestamptz is null or e.at < %(until)s::timestamptz)
   and (%(after_ord)s::bigint is null or (e.ord, e.key) {beyond} (%(after_ord)s::bigint, %(after_key)s::text collate "C"))
 order by e.ord {direction}, e.key {direction}
 limit %(limit)s
