//! Commits as the store's writers make them, in plain SQL: one transaction that ends with the counter and the word to all.

use sha2::{Digest as _, Sha256};
use sluicegate::store::Store;
use sqlx::{Connection as _, PgConnection};
use test_postgres::Database;

/// A migrated database with one org (1) and one profile (1).
pub struct Fixture {
    pub store: Store,
    pub sql: PgConnection,
    pub url: String,
}

/// SHA-256 of a key's text.
pub fn hash(key: &str) -> [u8; 32] {
    Sha256::digest(key.as_bytes()).into()
}

impl Fixture {
    pub async fn new() -> Self {
        Self::at(test_postgres::shared().await.empty().await).await
    }

    pub async fn at(database: Database) -> Self {
        let url = database.url;
        let store = Store::connect(&url).await.unwrap();
        let mut sql = PgConnection::connect(&url).await.unwrap();
        sqlx::raw_sql("insert into org (name) values ('acme'); insert into profile (id, body) values (1, '\\x0801')")
            .execute(&mut sql)
            .await
            .unwrap();
        Self { store, sql, url }
    }

    /// After the server was away.
    pub async fn reconnect(&mut self) {
        self.sql = PgConnection::connect(&self.url).await.unwrap();
    }

    /// `change` and a bump of `part`, in one transaction. Returns the revision.
    pub async fn commit(&mut self, part: &str, change: &str) -> u64 {
        let mut tx = self.sql.begin().await.unwrap();
        sqlx::raw_sql(sqlx::AssertSqlSafe(change.to_owned())).execute(&mut *tx).await.unwrap();
        let bump = format!("update revision set revision = revision + 1, {part} = revision + 1 returning revision");
        let revision: i64 = sqlx::query_scalar(sqlx::AssertSqlSafe(bump)).fetch_one(&mut *tx).await.unwrap();
        sqlx::query("select pg_notify('sluicegate', '')").execute(&mut *tx).await.unwrap();
        tx.commit().await.unwrap();
        revision.cast_unsigned()
    }

    async fn next(&mut self) -> i64 {
        sqlx::query_scalar("select revision + 1 from revision").fetch_one(&mut self.sql).await.unwrap()
    }

    pub async fn create_key(&mut self, key: &str) -> u64 {
        let (revision, hash) = (self.next().await, hex::encode(hash(key)));
        self.commit(
            "keys",
            &format!(
                "insert into api_key (public_id, hash, name, org_id, profile_id) values ('{key}', '\\x{hash}', '{key}', 1, 1);
                 insert into key_change (revision, prefix) values ({revision}, ('x' || left('{hash}', 8))::bit(32)::int);"
            ),
        )
        .await
    }

    pub async fn remove_key(&mut self, key: &str) -> u64 {
        let (revision, hash) = (self.next().await, hex::encode(hash(key)));
        self.commit(
            "keys",
            &format!(
                "delete from api_key where hash = '\\x{hash}';
                 insert into key_change (revision, prefix) values ({revision}, ('x' || left('{hash}', 8))::bit(32)::int);"
            ),
        )
        .await
    }

    /// Keys `bulk-1` to `bulk-<count>` in one commit.
    pub async fn create_many(&mut self, count: u32) -> u64 {
        let revision = self.next().await;
        self.commit(
            "keys",
            &format!(
                "insert into api_key (public_id, hash, name, org_id, profile_id)
                   select 'bulk-' || n, sha256(('bulk-' || n)::bytea), 'bulk-' || n, 1, 1 from generate_series(1, {count}) n;
                 insert into key_change (revision, prefix)
                   select distinct {revision}, ('x' || encode(substr(hash, 1, 4), 'hex'))::bit(32)::int
                   from api_key where name like 'bulk-%';"
            ),
        )
        .await
    }

    pub async fn block_org(&mut self) -> u64 {
        self.commit("blocks", "update org set blocked = true; insert into blocked_owner (kind, id) values (1, 1)").await
    }

    pub async fn set_policy(&mut self, snapshot: &[u8]) -> u64 {
        let (revision, body) = (self.next().await, hex::encode(snapshot));
        self.commit(
            "policy",
            &format!("insert into policy (revision, hash, snapshot) values ({revision}, '\\x00', '\\x{body}')"),
        )
        .await
    }
}
