//! Every living key, in memory, in the order of its hash. Pure.
//!
//! The index is cut into cells by the first two bytes of a hash and the cells into pages by the first one. Both are shared
//! between versions: a change copies one page and one cell, so a version is as immutable as it is cheap, and hundreds of
//! streams read whichever they hold. Each cell knows the revision of its last change, which is the whole change log a stream
//! needs: what changed since a revision is found by looking at 65,536 numbers, a page at a time.

use std::sync::Arc;

use sluicegate_core::state::record::{KeyRecord, RECORD_BYTES, bucket_of_prefix, prefix_of, prefixes_of};

/// The most buckets an Envoy may have.
pub const MAX_BUCKETS: u32 = 1 << 20;

/// An encoded [`KeyRecord`].
type Record = [u8; RECORD_BYTES];

const PAGES: usize = 256;
const CELLS_PER_PAGE: usize = 256;
const CELL_BITS: u32 = 16;

/// An immutable version of the index. Cloning it copies 256 pointers.
#[derive(Clone)]
pub struct KeyIndex {
    pages: Vec<Arc<Page>>,
    keys: usize,
    log_start: u64,
}

#[derive(Clone)]
struct Page {
    /// The newest of its cells' revisions.
    changed: u64,
    keys: usize,
    cells: Vec<Cell>,
}

#[derive(Clone)]
struct Cell {
    changed: u64,
    /// Sorted. `None` where empty, which most are in a small installation.
    records: Option<Arc<[Record]>>,
}

/// The exact set of keys whose hash starts with these four bytes, as of the version it leads to.
#[derive(Clone, Debug)]
pub struct Change {
    pub prefix: u32,
    pub revision: u64,
    /// Sorted by hash.
    pub records: Vec<KeyRecord>,
}

impl std::fmt::Debug for KeyIndex {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("KeyIndex").field("keys", &self.keys).field("log_start", &self.log_start).finish_non_exhaustive()
    }
}

impl Cell {
    fn records(&self) -> &[Record] {
        self.records.as_deref().unwrap_or_default()
    }
}

impl KeyIndex {
    /// How many keys there are.
    pub fn len(&self) -> usize {
        self.keys
    }

    pub fn is_empty(&self) -> bool {
        self.keys == 0
    }

    /// The oldest revision since which every change is known.
    pub fn log_start(&self) -> u64 {
        self.log_start
    }

    /// Every key, in the order of the hashes.
    pub fn records(&self) -> impl Iterator<Item = KeyRecord> {
        self.pages.iter().flat_map(|page| &page.cells).flat_map(Cell::records).map(KeyRecord::decode)
    }

    /// The content of bucket `index` of `count` (a power of two), sorted by hash.
    pub fn bucket(&self, index: u32, count: u32) -> Vec<KeyRecord> {
        let prefixes = prefixes_of(index, count);
        let (first, last) = (*prefixes.start(), *prefixes.end());
        if prefixes.is_empty() {
            return Vec::new();
        }
        let mut bucket = Vec::new();
        for cell in (first >> CELL_BITS)..=(last >> CELL_BITS) {
            let records = self.cell(cell).map(Cell::records).unwrap_or_default();
            let from = records.partition_point(|r| prefix(r) < first);
            let to = records.partition_point(|r| prefix(r) <= last);
            bucket.extend(records.get(from..to).unwrap_or_default().iter().map(KeyRecord::decode));
        }
        bucket
    }

    /// The first bucket at or after `from`, of `count` (a power of two), that has records.
    pub fn next_occupied(&self, from: u32, count: u32) -> Option<u32> {
        let prefixes = prefixes_of(from, count);
        if prefixes.is_empty() {
            return None;
        }
        let first = *prefixes.start();
        let (page, cell) = place(first);
        let rest_of_page = self.pages.get(page)?.cells.get(cell..)?.iter();
        let later_pages = self.pages.get(page + 1..)?.iter().filter(|p| p.keys > 0).flat_map(|p| &p.cells);
        let record = rest_of_page.chain(later_pages).find_map(|cell| {
            let records = cell.records();
            records.get(records.partition_point(|r| prefix(r) < first))
        })?;
        Some(bucket_of_prefix(prefix(record), count))
    }

    /// Prefixes of all keys that changed after `revision`: one in each bucket of an index of [`MAX_BUCKETS`] or fewer, and
    /// in an index of more than 65,536 some in the neighbours too. `None` when the log does not reach back to `revision`.
    pub fn changed_since(&self, revision: u64) -> Option<Vec<u32>> {
        if revision < self.log_start {
            return None;
        }
        let pages = (0_u32..).zip(&self.pages).filter(|(_, page)| page.changed > revision);
        let cells = pages.flat_map(|(p, page)| (p * CELLS_PER_PAGE as u32..).zip(&page.cells));
        let changed = cells.filter(|(_, cell)| cell.changed > revision);
        let step = (u64::from(u32::MAX) + 1) / u64::from(MAX_BUCKETS);
        Some(
            changed
                .flat_map(|(cell, _)| (cell << CELL_BITS..=cell << CELL_BITS | 0xffff).step_by(step as usize))
                .collect(),
        )
    }

    /// The version with `changes` applied.
    #[must_use]
    pub fn with(&self, changes: &[Change]) -> Self {
        let mut next = self.clone();
        for change in changes {
            next.apply(change);
        }
        next
    }

    fn apply(&mut self, change: &Change) {
        let (page, cell) = place(change.prefix);
        let Some(page) = self.pages.get_mut(page).map(Arc::make_mut) else { return };
        let Some(cell) = page.cells.get_mut(cell) else { return };
        let old = cell.records();
        let from = old.partition_point(|r| prefix(r) < change.prefix);
        let to = old.partition_point(|r| prefix(r) <= change.prefix);
        let (before, rest) = old.split_at(from);
        let (gone, after) = rest.split_at(to - from);
        self.keys = self.keys - gone.len() + change.records.len();
        page.keys = page.keys - gone.len() + change.records.len();
        let changed: Vec<Record> = change.records.iter().map(KeyRecord::encode).collect();
        let records: Vec<Record> = [before, &changed, after].concat();
        cell.changed = cell.changed.max(change.revision);
        page.changed = page.changed.max(change.revision);
        cell.records = (!records.is_empty()).then(|| records.into());
    }

    fn cell(&self, cell: u32) -> Option<&Cell> {
        let (page, cell) = place(cell << CELL_BITS);
        self.pages.get(page)?.cells.get(cell)
    }
}

/// Takes a whole index in, in order of the hashes, holding no more than the index itself.
#[derive(Debug)]
pub struct Builder {
    index: KeyIndex,
    current: u32,
    pending: Vec<Record>,
}

impl Default for Builder {
    fn default() -> Self {
        let cells = vec![Cell { changed: 0, records: None }; CELLS_PER_PAGE];
        let pages = (0..PAGES).map(|_| Arc::new(Page { changed: 0, keys: 0, cells: cells.clone() })).collect();
        Self { index: KeyIndex { pages, keys: 0, log_start: 0 }, current: 0, pending: Vec::new() }
    }
}

impl Builder {
    /// Records must come sorted by hash.
    pub fn push(&mut self, record: &KeyRecord) {
        let cell = prefix_of(&record.hash) >> CELL_BITS;
        if cell != self.current {
            self.flush();
            self.current = cell;
        }
        self.pending.push(record.encode());
    }

    /// `changed` holds cells (the first two bytes of a hash) and the revision of their last change after `log_start`.
    pub fn finish(mut self, log_start: u64, changed: impl IntoIterator<Item = (u16, u64)>) -> KeyIndex {
        self.flush();
        self.index.log_start = log_start;
        for (cell, revision) in changed {
            let (page, cell) = place(u32::from(cell) << CELL_BITS);
            let Some(page) = self.index.pages.get_mut(page).map(Arc::make_mut) else { continue };
            page.changed = page.changed.max(revision);
            if let Some(cell) = page.cells.get_mut(cell) {
                cell.changed = cell.changed.max(revision);
            }
        }
        self.index
    }

    fn flush(&mut self) {
        if self.pending.is_empty() {
            return;
        }
        let (page, cell) = place(self.current << CELL_BITS);
        if let Some(page) = self.index.pages.get_mut(page).map(Arc::make_mut)
            && let Some(cell) = page.cells.get_mut(cell)
        {
            self.index.keys += self.pending.len();
            page.keys += self.pending.len();
            cell.records = Some(self.pending.as_slice().into());
        }
        self.pending.clear();
    }
}

/// The first four bytes of the hash.
fn prefix(record: &Record) -> u32 {
    let [a, b, c, d, ..] = *record;
    u32::from_be_bytes([a, b, c, d])
}

/// Page and cell of a prefix.
fn place(prefix: u32) -> (usize, usize) {
    let [page, cell, ..] = prefix.to_be_bytes();
    (page.into(), cell.into())
}

#[cfg(test)]
mod tests {
    use std::collections::{BTreeMap, BTreeSet};

    use proptest::prelude::*;

    use super::*;

    fn record(prefix: u32, rest: u8) -> KeyRecord {
        let mut hash = [rest; 16];
        hash[..4].copy_from_slice(&prefix.to_be_bytes());
        KeyRecord { hash, org: 1, team: 0, user: 0, key: 1, profile: 1, expires_unix: 0, flags: 0 }
    }

    type Model = BTreeMap<u32, BTreeSet<u8>>;

    fn records(model: &Model) -> Vec<KeyRecord> {
        model.iter().flat_map(|(p, rests)| rests.iter().map(|r| record(*p, *r))).collect()
    }

    fn build(model: &Model) -> KeyIndex {
        let mut builder = Builder::default();
        records(model).iter().for_each(|r| builder.push(r));
        builder.finish(0, [])
    }

    /// All occupied buckets of `count` together, as a resync walks them.
    fn content(index: &KeyIndex, count: u32) -> Vec<KeyRecord> {
        let next = |from: u32| index.next_occupied(from, count);
        let buckets = std::iter::successors(next(0), |last| next(last + 1));
        buckets.flat_map(|b| index.bucket(b, count)).collect()
    }

    /// Prefixes that meet in cells, in buckets and at their edges.
    fn a_prefix() -> impl Strategy<Value = u32> {
        prop_oneof![any::<u32>(), 0..4_u32, (0..3_u32).prop_map(|n| 0xffff + n), (0..4_u32).prop_map(|n| !n)]
    }

    fn a_step() -> impl Strategy<Value = Model> {
        prop::collection::btree_map(a_prefix(), prop::collection::btree_set(any::<u8>(), 0..4), 1..4)
    }

    proptest! {
        #![proptest_config(ProptestConfig::with_cases(64))]

        #[test]
        fn changes_lead_where_a_load_does(steps in prop::collection::vec(a_step(), 1..8)) {
            let mut model = Model::new();
            let mut versions = vec![Builder::default().finish(0, [])];
            for (revision, step) in (1..).zip(&steps) {
                let change = |(p, rests): (&u32, &BTreeSet<u8>)| Change {
                    prefix: *p,
                    revision,
                    records: rests.iter().map(|r| record(*p, *r)).collect(),
                };
                versions.push(versions.last().unwrap().with(&step.iter().map(change).collect::<Vec<_>>()));
                model.extend(step.clone());
            }
            let last = versions.last().unwrap();
            prop_assert_eq!(last.len(), records(&model).len());
            for count in [1, 4_096, 65_536, MAX_BUCKETS] {
                prop_assert_eq!(content(last, count), records(&model));
                prop_assert_eq!(content(&build(&model), count), records(&model));
            }
            // Between any version and the last nothing changed outside of the buckets that are said to have.
            for count in [4_096, 65_536, MAX_BUCKETS] {
                for (revision, version) in (0..).zip(&versions) {
                    let changed = last.changed_since(revision).unwrap();
                    let changed: BTreeSet<u32> = changed.into_iter().map(|p| bucket_of_prefix(p, count)).collect();
                    for bucket in steps.iter().flat_map(Model::keys).map(|p| bucket_of_prefix(*p, count)) {
                        if !changed.contains(&bucket) {
                            prop_assert_eq!(version.bucket(bucket, count), last.bucket(bucket, count));
                        }
                    }
                }
            }
        }
    }

    #[test]
    fn a_change_is_one_bucket() {
        let model = (0..10_000_u32).map(|n| (n.wrapping_mul(2_654_435_761), BTreeSet::from([1]))).collect();
        let changed = build(&model).with(&[Change { prefix: 0xffff_ffff, revision: 9, records: vec![] }]);
        let buckets = |count| -> BTreeSet<u32> {
            changed.changed_since(8).unwrap().into_iter().map(|p| bucket_of_prefix(p, count)).collect()
        };
        assert_eq!(buckets(65_536), BTreeSet::from([65_535]));
        assert_eq!(buckets(4_096), BTreeSet::from([4_095]));
        assert_eq!(buckets(131_072), BTreeSet::from([131_070, 131_071]));
        assert_eq!(changed.changed_since(9), Some(vec![]));
    }

    #[test]
    fn the_log_has_a_start() {
        let index = Builder::default().finish(7, [(1, 9), (2, 8)]);
        assert_eq!(index.changed_since(6), None);
        let cells = |revision| -> BTreeSet<u32> {
            index.changed_since(revision).unwrap().into_iter().map(|p| p >> CELL_BITS).collect()
        };
        assert_eq!(cells(7), BTreeSet::from([1, 2]));
        assert_eq!(cells(8), BTreeSet::from([1]));
    }

    #[test]
    fn buckets_that_there_are_not_are_empty() {
        let index = build(&Model::from([(u32::MAX, BTreeSet::from([1]))]));
        assert_eq!(index.bucket(4_096, 4_096), []);
        assert_eq!(index.next_occupied(4_096, 4_096), None);
        assert_eq!(index.next_occupied(0, 4_096), Some(4_095));
    }
}
