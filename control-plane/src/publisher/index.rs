//! Every living key, in memory, in the order of its hash. Pure.
//!
//! The index is cut into cells by the first two bytes of a hash and the cells into pages by the first one. Both are shared
//! between versions: a change copies one page and one cell, so a version is as immutable as it is cheap, and hundreds of
//! streams read whichever they hold. Each cell knows the revision of its last change, which is the whole change log a stream
//! needs: what changed since a revision is found by looking at 65,536 numbers, a page at a time.

use std::sync::Arc;

/// Bytes of one record; the first 16 are the first 16 of the key's hash.
pub const RECORD_BYTES: usize = 48;

/// A key as Envoys hold it.
pub type Record = [u8; RECORD_BYTES];

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
    /// Sorted.
    pub records: Vec<Record>,
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

    /// Every record, in the order of the hashes.
    pub fn records(&self) -> impl Iterator<Item = &Record> {
        self.pages.iter().flat_map(|page| &page.cells).flat_map(Cell::records)
    }

    /// The content of bucket `index` of `count` (a power of two): sorted records, one after the other. Empty for a bucket
    /// that there is not.
    pub fn bucket(&self, index: u32, count: u32) -> Vec<u8> {
        let bits = count.max(1).ilog2();
        let Some((first, last)) = range(index, bits) else { return Vec::new() };
        let cells = (first >> CELL_BITS)..=(last >> CELL_BITS);
        let mut bytes = Vec::new();
        for cell in cells.filter_map(|c| self.cell(c)) {
            let records = cell.records();
            let from = records.partition_point(|r| prefix(r) < first);
            let to = records.partition_point(|r| prefix(r) <= last);
            for record in records.get(from..to).unwrap_or_default() {
                bytes.extend_from_slice(record);
            }
        }
        bytes
    }

    /// The buckets of `count` (a power of two) that may have changed after `revision`, ascending: all that did, and where
    /// there are more than 65,536 buckets, their neighbours in the cell. `None` when the log does not reach back to it.
    pub fn changed_since(&self, revision: u64, count: u32) -> Option<Vec<u32>> {
        if revision < self.log_start {
            return None;
        }
        let bits = count.max(1).ilog2();
        let mut buckets = Vec::new();
        let changed = (0_u32..).zip(&self.pages).filter(|(_, page)| page.changed > revision);
        for (cell, _) in changed
            .flat_map(|(p, page)| (p * CELLS_PER_PAGE as u32..).zip(&page.cells))
            .filter(|(_, cell)| cell.changed > revision)
        {
            let first = cell << CELL_BITS;
            let last = first | 0xffff;
            let (from, to) = (bucket_of(first, bits), bucket_of(last, bits));
            // Several cells of one bucket come one after the other.
            let from = if buckets.last() == Some(&from) { from + 1 } else { from };
            buckets.extend(from..=to);
        }
        Some(buckets)
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
        let records: Vec<Record> = [before, &change.records, after].concat();
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
        let pages = (0..PAGES).map(|_| Arc::new(Page { changed: 0, cells: cells.clone() })).collect();
        Self { index: KeyIndex { pages, keys: 0, log_start: 0 }, current: 0, pending: Vec::new() }
    }
}

impl Builder {
    /// Records must come sorted.
    pub fn push(&mut self, record: Record) {
        let cell = prefix(&record) >> CELL_BITS;
        if cell != self.current {
            self.flush();
            self.current = cell;
        }
        self.pending.push(record);
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
        if let Some(cell) = self.index.pages.get_mut(page).map(Arc::make_mut).and_then(|p| p.cells.get_mut(cell)) {
            self.index.keys += self.pending.len();
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

/// Which of `2^bits` buckets a prefix falls into.
fn bucket_of(prefix: u32, bits: u32) -> u32 {
    prefix.checked_shr(u32::BITS - bits).unwrap_or(0)
}

/// The first and last prefix of bucket `index` of `2^bits`.
fn range(index: u32, bits: u32) -> Option<(u32, u32)> {
    let shift = u32::BITS - bits;
    let (first, width) = (u64::from(index) << shift, 1_u64 << shift);
    Some((u32::try_from(first).ok()?, u32::try_from(first + width - 1).ok()?))
}

#[cfg(test)]
mod tests {
    use std::collections::{BTreeMap, BTreeSet};

    use proptest::prelude::*;

    use super::*;

    fn record(prefix: u32, rest: u8) -> Record {
        let mut record = [rest; RECORD_BYTES];
        record[..4].copy_from_slice(&prefix.to_be_bytes());
        record
    }

    fn build(records: &BTreeSet<Record>) -> KeyIndex {
        let mut builder = Builder::default();
        records.iter().for_each(|r| builder.push(*r));
        builder.finish(0, [])
    }

    /// All buckets of `count` together.
    fn content(index: &KeyIndex, count: u32) -> Vec<Record> {
        let bytes: Vec<u8> = (0..count).flat_map(|b| index.bucket(b, count)).collect();
        bytes.chunks(RECORD_BYTES).map(|r| r.try_into().unwrap()).collect()
    }

    /// Prefixes that meet in cells, in buckets and at their edges.
    fn a_prefix() -> impl Strategy<Value = u32> {
        prop_oneof![any::<u32>(), 0..4_u32, (0..3_u32).prop_map(|n| 0xffff + n), (0..4_u32).prop_map(|n| !n)]
    }

    proptest! {
        #![proptest_config(ProptestConfig::with_cases(32))]

        #[test]
        fn changes_lead_where_a_load_does(
            steps in prop::collection::vec(prop::collection::vec((a_prefix(), prop::collection::btree_set(any::<u8>(), 0..4)), 1..4), 1..8),
        ) {
            let mut model: BTreeMap<u32, BTreeSet<Record>> = BTreeMap::new();
            let mut versions = vec![Builder::default().finish(0, [])];
            for (revision, step) in (1..).zip(&steps) {
                let step: BTreeMap<u32, BTreeSet<Record>> =
                    step.iter().map(|(p, rests)| (*p, rests.iter().map(|r| record(*p, *r)).collect())).collect();
                let changes: Vec<_> = step
                    .iter()
                    .map(|(p, records)| Change { prefix: *p, revision, records: records.iter().copied().collect() })
                    .collect();
                model.extend(step);
                versions.push(versions.last().unwrap().with(&changes));
            }
            let all: BTreeSet<Record> = model.values().flatten().copied().collect();
            let last = versions.last().unwrap();
            prop_assert_eq!(last.len(), all.len());
            for count in [4_096, 65_536, 131_072] {
                prop_assert_eq!(content(last, count), all.iter().copied().collect::<Vec<_>>());
                prop_assert_eq!(content(last, count), content(&build(&all), count));
                // Between any two versions nothing changed outside of the buckets that are said to have.
                for (revision, version) in (0..).zip(&versions) {
                    let changed = last.changed_since(revision, count).unwrap();
                    prop_assert!(changed.is_sorted_by(|a, b| a < b));
                    for bucket in (0..count).filter(|b| changed.binary_search(b).is_err()) {
                        prop_assert_eq!(version.bucket(bucket, count), last.bucket(bucket, count));
                    }
                }
            }
        }
    }

    #[test]
    fn a_change_is_one_bucket() {
        let index = build(&(0..10_000_u32).map(|n| record(n.wrapping_mul(2_654_435_761), 1)).collect());
        let changed = index.with(&[Change { prefix: 0xffff_ffff, revision: 9, records: vec![] }]);
        assert_eq!(changed.changed_since(8, 65_536), Some(vec![65_535]));
        assert_eq!(changed.changed_since(8, 4_096), Some(vec![4_095]));
        assert_eq!(changed.changed_since(8, 131_072), Some(vec![131_070, 131_071]));
        assert_eq!(changed.changed_since(9, 65_536), Some(vec![]));
    }

    #[test]
    fn the_log_has_a_start() {
        let index = Builder::default().finish(7, [(1, 9), (2, 8)]);
        assert_eq!(index.changed_since(6, 65_536), None);
        assert_eq!(index.changed_since(7, 65_536), Some(vec![1, 2]));
        assert_eq!(index.changed_since(8, 65_536), Some(vec![1]));
        assert_eq!(index.changed_since(7, 4_096), Some(vec![0]));
    }
}
