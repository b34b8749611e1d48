-- What was called how, once it is gone: a bill names whom it is for.
create table former_name (
  kind text not null,                          -- name of its table
  id   integer not null,
  name text not null,
  primary key (kind, id)
);
create function keep_name() returns trigger language plpgsql as $$
begin
  insert into former_name (kind, id, name) values (tg_table_name, old.id, old.name) on conflict do nothing;
  return null;
end $$;
-- On the rows themselves, so that what a deletion takes along is kept too.
create trigger keep_name after delete on org        for each row execute function keep_name();
create trigger keep_name after delete on team       for each row execute function keep_name();
create trigger keep_name after delete on app_user   for each row execute function keep_name();
create trigger keep_name after delete on api_key    for each row execute function keep_name();
create trigger keep_name after delete on model      for each row execute function keep_name();
create trigger keep_name after delete on credential for each row execute function keep_name();

-- With the id: what is gone may have had a namesake.
create function former(of_kind text, of_id integer) returns text stable language sql as $$
  select coalesce((select name || ' (deleted ' || of_id || ')' from former_name where kind = of_kind and id = of_id),
                  of_id || ' (deleted)')
  where of_id is not null
$$;
