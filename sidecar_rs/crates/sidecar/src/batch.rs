//! A worker's batch while it is computed: its units, one row for each item that runs, and what is
//! known of each row so far.

use bytes::Bytes;
use shoal_exchange::BatchKey;
use shoal_proto::shoal::sidecar::v1::Span;

use crate::faults::ItemFault;
use crate::hold::Claimed;
use crate::outbox::Outbox;

pub struct Batch {
    pub key: BatchKey,
    /// The worker's name for it.
    pub batch_id: u64,
    pub trace: bool,
    /// Where the answer goes.
    pub outbox: Outbox,
    pub units: Vec<Member>,
    pub rows: Vec<Row>,
    pub device: DeviceTime,
    /// What happened when, for traces.
    pub spans: Vec<Span>,
}

/// A unit of a batch.
pub struct Member {
    pub claimed: Claimed,
    /// How often items of it had to run again.
    pub reruns: u32,
    /// Its owner wants no result any more.
    pub released: bool,
}

/// An item that runs.
pub struct Row {
    /// Index of its unit in the batch.
    pub unit: usize,
    /// Index in that unit.
    pub item: usize,
    pub outcome: Option<Outcome>,
}

/// What running a row gave: little-endian f32 values, or a fault.
pub type Outcome = Result<Bytes, ItemFault>;

/// Time that a batch spent on the device.
#[derive(Debug, Clone, Copy, Default)]
pub struct DeviceTime {
    /// All runs together.
    pub compute_ns: u64,
    /// When the first began, nanoseconds since 1970.
    pub started_unix_ns: Option<u64>,
}

impl DeviceTime {
    /// Adds a run; one that never began (both are 0) adds nothing.
    pub fn add(&mut self, started_unix_ns: u64, ended_unix_ns: u64) {
        if started_unix_ns == 0 {
            return;
        }
        self.compute_ns += ended_unix_ns.saturating_sub(started_unix_ns);
        self.started_unix_ns.get_or_insert(started_unix_ns);
    }
}

impl Batch {
    pub fn new(
        key: BatchKey,
        batch_id: u64,
        trace: bool,
        outbox: Outbox,
        units: Vec<Claimed>,
    ) -> Self {
        let mut rows = Vec::new();
        for (unit, claimed) in units.iter().enumerate() {
            let items = claimed.unit.items.iter().enumerate();
            let runnable = items.filter(|(_, item)| item.tokens.is_ok());
            rows.extend(runnable.map(|(item, _)| Row {
                unit,
                item,
                outcome: None,
            }));
        }
        let member = |claimed| Member {
            claimed,
            reruns: 0,
            released: false,
        };
        Self {
            key,
            batch_id,
            trace,
            outbox,
            units: units.into_iter().map(member).collect(),
            rows,
            device: DeviceTime::default(),
            spans: Vec::new(),
        }
    }

    pub fn unit_ids(&self) -> Vec<String> {
        let ids = self
            .units
            .iter()
            .map(|member| member.claimed.unit.id.clone());
        ids.collect()
    }

    /// The digest of the profile that all units share; none in a batch without units.
    pub fn profile_digest(&self) -> Option<&str> {
        let first = self.units.first()?;
        Some(&first.claimed.unit.model.digest)
    }

    /// The tokens of a row.
    pub fn tokens(&self, row: usize) -> &[i32] {
        let Row { unit, item, .. } = self.rows[row];
        let item = &self.units[unit].claimed.unit.items[item];
        item.tokens.as_ref().map_or(&[], |tokens| &tokens.ids)
    }

    /// Whether nothing is left to compute: rows that nobody wants count as done.
    pub fn is_done(&self) -> bool {
        let mut rows = self.rows.iter();
        rows.all(|row| row.outcome.is_some() || self.units[row.unit].released)
    }
}
