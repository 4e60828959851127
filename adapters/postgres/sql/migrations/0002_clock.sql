-- All time in SQL comes from here. Tests and the simulator move the clock; the service may only read it.
create table clock (
    one    boolean     primary key default true check (one),
    shift  interval    not null default interval '0',
    frozen timestamptz
);
insert into clock default values;

create function tk_now() returns timestamptz language plpgsql volatile set search_path from current as $$
declare
    at timestamptz;
begin
    select coalesce(c.frozen, clock_timestamp()) + c.shift into strict at from clock c;
    return at;
end $$;
