-- Owners that show a token of somebody's (JWT) instead of a key.

-- Whose tokens are taken, and what they make of their holders.
create table issuer (
  id            integer generated always as identity primary key,
  name          text not null unique,
  issuer        text not null unique,          -- the `iss` claim
  audiences     text[] not null,
  jwks_uri      text,
  jwks          jsonb,                         -- the keys themselves, where they are not fetched
  ca            text,
  allow_private boolean not null default false,
  org_id        integer references org on delete restrict, -- null: by claim, see issuer_org
  org_claim     text[],                        -- paths into the payload, as all claims
  user_claim    text[],                        -- null: the subject
  team_claim    text[],
  required      jsonb not null default '[]',   -- [{"claim": [..], "values": [..]}]
  models        integer[],                     -- of everybody; null: any, or with roles none
  roles_claim   text[],
  created_at    timestamptz not null default now(),
  check ((jwks_uri is null) <> (jwks is null)),
  check ((org_id is null) = (org_claim is not null))
);
-- Which value of org_claim means which org.
create table issuer_org (
  issuer_id integer not null references issuer on delete cascade,
  value     text not null,
  org_id    integer not null references org on delete restrict,
  primary key (issuer_id, value)
);
-- What a value of roles_claim adds.
create table issuer_role (
  issuer_id integer not null references issuer on delete cascade,
  position  integer not null,
  value     text not null,
  models    integer[],                         -- null: any
  primary key (issuer_id, value)
);

-- Who a subject is: stays when the issuer's rules change, so that its user does not become another one.
create table issuer_subject (
  issuer_id integer not null references issuer on delete cascade,
  subject   text not null,
  org_id    integer not null references org on delete cascade,
  user_id   integer not null references app_user on delete cascade,
  primary key (issuer_id, subject, org_id)
);
create index on issuer_subject (user_id);

-- What one subject with one set of claims may do: derived, made on first use, deleted when a rule behind it changes or after
-- 30 days. Envoys hold it like a key.
create table identity (
  hash       bytea primary key,                -- SHA-256 of issuer, subject and claims
  issuer_id  integer not null references issuer on delete cascade,
  subject    text not null,
  user_id    integer not null references app_user on delete cascade,
  profile_id integer not null references profile,
  created_at timestamptz not null default now()
);
create index on identity (issuer_id);
create index on identity (user_id);
create index on identity (profile_id);
create index on identity (created_at);

-- All that Envoys find by a hash. Ids are 0 where there is none.
create view key_record as
  select hash, id, org_id, team_id, user_id, profile_id, disabled, expires_at from api_key
  union all
  select i.hash, 0, u.org_id, u.team_id, u.id, i.profile_id, false, null
  from identity i join app_user u on u.id = i.user_id;
