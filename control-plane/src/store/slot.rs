//! Ids that Envoys keep in numbered places: the place is the id modulo how many there are.

use std::collections::BTreeSet;

use sqlx::PgConnection;

/// The next id of `sequence` whose place is free; `None` where all are taken. Only right while the caller keeps others
/// from adding ids of this kind.
pub(super) async fn next_free(
    conn: &mut PgConnection,
    sequence: &'static str,
    slots: i32,
    taken: &BTreeSet<i32>,
) -> Result<Option<i32>, sqlx::Error> {
    if i32::try_from(taken.len()).is_ok_and(|taken| taken < slots) {
        loop {
            let id: i32 = sqlx::query_scalar("select nextval($1::text::regclass)::int")
                .bind(sequence)
                .fetch_one(&mut *conn)
                .await?;
            if !taken.contains(&(id % slots)) {
                return Ok(Some(id));
            }
        }
    }
    Ok(None)
}
