-- What a group's Envoys may hold. Null: all there is.
alter table envoy_group
  add column orgs        integer[],
  add column models      integer[],
  add column credentials integer[],
  add column scoped_at   bigint not null default 0; -- revision of the last change of these
