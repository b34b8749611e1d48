-- The store. Ids are stable and never reused; deleting a noun removes its row, the sequence moves on.
-- Every write is one transaction that writes its audit row and, last, bumps `revision`: that row's lock makes commit order revision order.

create table revision (
  one          boolean primary key default true check (one),
  era          bigint not null,             -- rises only when the database is not the one it was (restore, promotion)
  fingerprint  text   not null,             -- of the database the era belongs to
  revision     bigint not null default 0,   -- of the last commit
  policy       bigint not null default 0,   -- revision of the last commit that changed the policy
  keys         bigint not null default 0,
  blocks       bigint not null default 0,
  credentials  bigint not null default 0
);
-- The fingerprint is nobody's: the first connection finds it different and starts the first real era.
insert into revision (era, fingerprint) values (0, '');

create table org (
  id         integer generated always as identity primary key,
  name       text not null unique,
  blocked    boolean not null default false,
  created_at timestamptz not null default now()
);
create table team (
  id         integer generated always as identity primary key,
  org_id     integer not null references org on delete cascade,
  name       text not null,
  blocked    boolean not null default false,
  created_at timestamptz not null default now(),
  unique (org_id, name)
);
create table app_user (
  id         integer generated always as identity primary key,
  org_id     integer not null references org on delete cascade,
  team_id    integer references team on delete cascade,
  name       text not null,                 -- an e-mail address or any other name of theirs
  blocked    boolean not null default false,
  created_at timestamptz not null default now(),
  unique (org_id, name)
);

-- What a key may do, interned by content: immutable, ids never reused. Ids that share a slot (id mod the boot's profile count) never live together.
create table profile (
  id      integer primary key,
  body    bytea not null unique,
  used_at timestamptz not null default now()
);
create sequence profile_id as integer;

create table api_key (
  id         integer generated always as identity primary key,
  public_id  text not null unique,          -- the <id> of sk-sg-<id>-<secret>
  hash       bytea not null unique,         -- SHA-256 of the whole key
  name       text not null,
  org_id     integer not null references org on delete cascade,
  team_id    integer references team on delete cascade,
  user_id    integer references app_user on delete cascade,
  models     integer[],                     -- null: any
  networks   cidr[] not null default '{}',  -- empty: from anywhere
  profile_id integer not null references profile,
  disabled   boolean not null default false,
  expires_at timestamptz,
  created_at timestamptz not null default now(),
  unique (org_id, name)
);
create index on api_key (team_id);
create index on api_key (user_id);
create index on api_key (profile_id);

-- Which hash prefixes changed at which revision; a Sync stream cuts it by its boot's bucket count. Kept for 24 hours.
create table key_change (
  revision bigint not null,
  prefix   integer not null,                -- first four bytes of the hash, big endian, as they are
  at       timestamptz not null default now(),
  primary key (revision, prefix)
);

create table blocked_owner (
  kind    smallint not null,                -- OwnerKind of the wire
  id      integer not null,
  gone_at timestamptz,                      -- set when the owner was deleted: the entry leaves a day later
  primary key (kind, id)
);

create table provider (
  id            integer generated always as identity primary key,
  name          text not null unique,
  dialect       text not null,
  base_url      text not null,
  ca            text,                       -- PEM; null: the public roots
  allow_private boolean not null default false, -- loopback, link-local and metadata addresses are refused otherwise
  created_at    timestamptz not null default now()
);
create table credential (
  id          integer generated always as identity primary key,
  provider_id integer not null references provider on delete cascade,
  name        text not null unique,
  source      text not null,                -- stored | env:<NAME> | file:<path>
  sealed      bytea,                        -- under the keyring, where stored
  revision    bigint not null default 0,
  created_at  timestamptz not null default now(),
  check ((source = 'stored') = (sealed is not null))
);
create table backend (
  id          integer generated always as identity primary key,
  provider_id integer not null references provider on delete restrict,
  model       text not null,
  unique (provider_id, model)
);
create table price (
  id          integer generated always as identity primary key,
  provider_id integer not null references provider on delete cascade,
  model       text not null,
  tiers       jsonb not null,
  created_at  timestamptz not null default now(),
  unique (provider_id, model)
);
create table model (
  id         integer generated always as identity primary key,
  name       text not null unique,
  created_at timestamptz not null default now()
);
create table model_target (
  model_id      integer not null references model on delete cascade,
  position      integer not null,
  backend_id    integer not null references backend on delete restrict,
  credential_id integer references credential on delete restrict,
  weight        integer check (weight > 0),
  primary key (model_id, position)
);

-- Every policy that was ever in force, encoded: what a usage record was priced by can be looked up again.
create table policy (
  revision   bigint primary key,
  hash       bytea not null,
  snapshot   bytea not null,
  created_at timestamptz not null default now()
);

create table envoy_group (
  id          integer generated always as identity primary key,
  name        text not null unique,
  description text not null default '',
  created_at  timestamptz not null default now()
);
insert into envoy_group (name, description) values ('default', 'Every Envoy whose token names no other group');

create table node_token (
  id         integer generated always as identity primary key,
  name       text not null unique,
  group_id   integer not null references envoy_group on delete restrict,
  hash       bytea not null unique,         -- SHA-256 of the token
  seal_key   bytea not null,                -- under the keyring
  expires_at timestamptz,
  revoked_at timestamptz,
  created_at timestamptz not null default now()
);
create table admin_token (
  id         integer generated always as identity primary key,
  name       text not null unique,
  hash       bytea not null unique,
  created_at timestamptz not null default now()
);
create table keyring_check (
  one    boolean primary key default true check (one),
  sealed bytea not null
);

-- Envoy processes seen, one row per boot.
create table envoy (
  boot             bigint primary key,
  node             text not null,
  group_id         integer not null references envoy_group,
  filter_version   text not null default '',
  envoy_version    text not null default '',
  ready            boolean not null default false,
  policy_revision  bigint not null default 0,
  key_revision     bigint not null default 0,
  blocked_revision bigint not null default 0,
  standing         jsonb not null default '{}',
  refused_revision bigint,                  -- last policy it refused, and why
  refused_field    text,
  refused_message  text,
  first_seen       timestamptz not null default now(),
  last_seen        timestamptz not null default now()
);

create table usage (
  day              date not null,           -- of admitted_at, in UTC
  boot             bigint not null,
  vm               bigint not null,
  seq              bigint not null,
  operation        uuid not null,
  attempt          integer not null,
  last             boolean not null,
  admitted_at      timestamptz not null,
  node             text not null default '',
  org_id           integer, team_id integer, user_id integer, key_id integer,
  session          text,
  route            text not null,
  requested_model  text not null,
  model_id         integer, backend_id integer, credential_id integer,
  policy_revision  bigint not null,
  stream           boolean not null,
  input            bigint not null, cache_read bigint not null, cache_write_5m bigint not null, cache_write_1h bigint not null,
  output           bigint not null, reasoning bigint not null, audio_in bigint not null, audio_out bigint not null, images bigint not null,
  source           text not null check (source in ('none', 'reported', 'estimated')),
  cost_nano        bigint,                  -- null: unpriced
  status           integer not null,
  upstream_status  integer,
  refusal          text,
  ended            text not null,
  first_token_us   integer, total_us integer not null, gateway_us integer not null,
  witness          text not null default 'flow' check (witness in ('flow', 'log')), -- who brought it first
  received_at      timestamptz not null default now(),
  primary key (day, boot, vm, seq)
) partition by range (day);
create table usage_default partition of usage default;
create index on usage (operation);
create index on usage (key_id, admitted_at);
create index on usage (admitted_at);

-- Added to in the transaction that inserts the usage rows, from rows really inserted. Ids are 0 where there is none.
create table usage_hourly (
  hour       timestamptz not null,
  org_id     integer not null, team_id integer not null, user_id integer not null, key_id integer not null,
  model_id   integer not null, backend_id integer not null,
  requests   bigint not null default 0,     -- operations that ended in this hour's attempts
  attempts   bigint not null default 0,
  refused    bigint not null default 0,
  estimated  bigint not null default 0,
  input      bigint not null default 0, cached bigint not null default 0, output bigint not null default 0,
  cost_nano  bigint not null default 0,
  unpriced   bigint not null default 0,
  primary key (hour, org_id, team_id, user_id, key_id, model_id, backend_id)
);

create table audit (
  id       bigint generated always as identity primary key,
  at       timestamptz not null default now(),
  actor    text not null,
  action   text not null,                   -- create | update | delete | block | unblock | rotate | apply
  kind     text not null,
  object   text not null,                   -- its name
  revision bigint not null,
  detail   jsonb not null                   -- what changed, without secrets
);
create index on audit (kind, object, at);
