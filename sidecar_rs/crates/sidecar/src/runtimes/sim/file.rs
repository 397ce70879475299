//! The sim file: how simulated devices behave. What it does not know it refuses.

use std::collections::{BTreeMap, HashMap};
use std::path::{Path, PathBuf};

use serde::de::DeserializeOwned;
use serde::{Deserialize, Serialize};
use serde_json::{Map, Value};

use super::cost::Cost;
use crate::limits::{BATCH_SILENCE, LOAD_SILENCE};

/// Of a batch, and of a stall.
const LONGEST_MS: f64 = 5_000.0;
const LONGEST_LOAD_MS: f64 = 60_000.0;

const _: () = assert!(
    2.0 * LONGEST_MS < BATCH_SILENCE.as_millis() as f64
        && LONGEST_LOAD_MS < LOAD_SILENCE.as_millis() as f64,
    "what is slow is not taken for a hang"
);

/// What a sim file says, device by device.
#[derive(Debug, Clone)]
pub struct SimFile {
    everywhere: Behaviour,
    devices: HashMap<String, Behaviour>,
}

/// How a device behaves; at its top level, the file itself.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct Behaviour {
    /// Of jitter, stalls and faults. The same seed gives the same luck, batch by batch of a device.
    pub seed: u64,
    pub cost: Cost,
    /// Milliseconds that loading a model takes.
    pub load_ms: f64,
    /// What a model takes on the device.
    pub memory_bytes: u64,
    /// Batches take their time times a lognormal factor with mean 1; its logarithm spreads by this.
    pub jitter: f64,
    pub stalls: Stalls,
    pub faults: Faults,
    /// What is different on a device, by its name; the keys are those of this level.
    #[serde(skip_serializing)]
    devices: BTreeMap<String, Map<String, Value>>,
}

/// Batches that take longer by some milliseconds.
#[derive(Debug, Clone, Copy, Default, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct Stalls {
    /// Of a batch.
    pub probability: f64,
    pub ms: f64,
}

/// What goes wrong.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct Faults {
    /// That a batch ends the runtime when its time is over. Its rows run again one by one, each a
    /// batch: one that crashes then too has failed, as with a real runtime.
    pub crash_probability: f64,
    /// That a batch is never answered: the sidecar ends the runtime after some time.
    pub hang_probability: f64,
    /// Rows of token ids, special tokens included, that end the runtime.
    pub crash_on_tokens: Vec<Vec<i32>>,
    /// No model can be loaded.
    pub fail_load: bool,
}

/// A sim file that cannot be used.
#[derive(Debug, thiserror::Error)]
pub enum SimFileError {
    #[error("the sim file {} cannot be read: {source}", .path.display())]
    Unreadable {
        path: PathBuf,
        source: std::io::Error,
    },
    #[error("the sim file {}: {fault}", .path.display())]
    Wrong { path: PathBuf, fault: Fault },
}

/// A key and what is wrong with it.
#[derive(Debug, PartialEq, Eq, thiserror::Error)]
#[error("{key}: {what}")]
pub struct Fault {
    key: String,
    what: String,
}

impl SimFile {
    pub fn read(path: &Path) -> Result<Self, SimFileError> {
        let at = || path.to_owned();
        let text = std::fs::read_to_string(path)
            .map_err(|source| SimFileError::Unreadable { path: at(), source })?;
        Self::parse(&text).map_err(|fault| SimFileError::Wrong { path: at(), fault })
    }

    /// Reads a file's text.
    pub fn parse(text: &str) -> Result<Self, Fault> {
        // Serde would take a list for the values of a struct in their order.
        if !text.trim_start().starts_with('{') {
            return Err(fault("", "must be a JSON object".to_owned()));
        }
        let mut json = serde_json::Deserializer::from_str(text);
        let everywhere: Behaviour = deserialized(&mut json, "")?;
        json.end().map_err(|error| fault("", error.to_string()))?;
        everywhere.check("")?;
        let mut devices = HashMap::new();
        for (name, changes) in &everywhere.devices {
            devices.insert(name.clone(), everywhere.changed(name, changes)?);
        }
        Ok(Self {
            everywhere,
            devices,
        })
    }

    /// How a device behaves.
    pub fn of(&self, device: &str) -> &Behaviour {
        self.devices.get(device).unwrap_or(&self.everywhere)
    }
}

impl Behaviour {
    /// The behaviour of a device that the file names.
    fn changed(&self, device: &str, changes: &Map<String, Value>) -> Result<Self, Fault> {
        let prefix = format!("devices.{device}.");
        let number = device.strip_prefix("sim:").unwrap_or_default();
        if number.is_empty() || !number.bytes().all(|byte| byte.is_ascii_digit()) {
            return Err(fault(
                &format!("devices.{device}"),
                "is no simulated device: their names are sim:0, sim:1 and so on".to_owned(),
            ));
        }
        if changes.contains_key("devices") {
            return Err(fault(
                &format!("{prefix}devices"),
                "stands at the top level alone".to_owned(),
            ));
        }
        let mut whole = serde_json::to_value(self).map_err(|error| fault("", error.to_string()))?;
        if let Value::Object(whole) = &mut whole {
            merge(whole, changes);
        }
        let changed: Self = deserialized(whole, &prefix)?;
        changed.check(&prefix)?;
        Ok(changed)
    }

    /// Every value within its bounds.
    fn check(&self, prefix: &str) -> Result<(), Fault> {
        let bounds = [
            ("cost.batch_ms", self.cost.batch_ms, LONGEST_MS),
            ("cost.token_us", self.cost.token_us, 1e6),
            ("cost.squared_token_ns", self.cost.squared_token_ns, 1e6),
            ("cost.item_us", self.cost.item_us, 1e6),
            ("load_ms", self.load_ms, LONGEST_LOAD_MS),
            ("jitter", self.jitter, 2.0),
            ("stalls.probability", self.stalls.probability, 1.0),
            ("stalls.ms", self.stalls.ms, LONGEST_MS),
            (
                "faults.crash_probability",
                self.faults.crash_probability,
                1.0,
            ),
            ("faults.hang_probability", self.faults.hang_probability, 1.0),
        ];
        for (key, value, most) in bounds {
            if !(0.0..=most).contains(&value) {
                let what = format!("{value} is out of range: from 0 to {most} is allowed");
                return Err(fault(&format!("{prefix}{key}"), what));
            }
        }
        if self.faults.crash_on_tokens.iter().any(Vec::is_empty) {
            return Err(fault(
                &format!("{prefix}faults.crash_on_tokens"),
                "a row must have token ids".to_owned(),
            ));
        }
        Ok(())
    }
}

/// Changes key by key, objects within objects too.
fn merge(whole: &mut Map<String, Value>, changes: &Map<String, Value>) {
    for (key, change) in changes {
        match (whole.get_mut(key), change) {
            (Some(Value::Object(inner)), Value::Object(change)) => merge(inner, change),
            _ => {
                whole.insert(key.clone(), change.clone());
            }
        }
    }
}

fn deserialized<'de, T, D>(from: D, prefix: &str) -> Result<T, Fault>
where
    T: DeserializeOwned,
    D: serde::Deserializer<'de>,
    D::Error: std::fmt::Display,
{
    serde_path_to_error::deserialize(from).map_err(|error| {
        let key = match error.path().to_string().as_str() {
            "." => prefix.trim_end_matches('.').to_owned(),
            path => format!("{prefix}{path}"),
        };
        fault(&key, error.into_inner().to_string())
    })
}

fn fault(key: &str, what: String) -> Fault {
    let key = if key.is_empty() { "the file" } else { key };
    Fault {
        key: key.to_owned(),
        what,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn refused(text: &str) -> String {
        SimFile::parse(text).unwrap_err().to_string()
    }

    #[test]
    fn what_is_not_said_costs_nothing_and_never_happens() {
        let file = SimFile::parse("{}").unwrap();
        assert_eq!(*file.of("sim:0"), Behaviour::default());
    }

    #[test]
    fn a_device_differs_in_what_the_file_says_of_it() {
        let file = SimFile::parse(
            r#"{"seed": 7, "cost": {"batch_ms": 4, "token_us": 2}, "jitter": 0.1,
                "devices": {"sim:1": {"cost": {"batch_ms": 40}, "faults": {"fail_load": true}}}}"#,
        )
        .unwrap();
        let (usual, slow) = (file.of("sim:0"), file.of("sim:1"));
        assert_eq!((usual.cost.batch_ms, usual.cost.token_us), (4.0, 2.0));
        assert_eq!((slow.cost.batch_ms, slow.cost.token_us), (40.0, 2.0));
        assert_eq!((slow.seed, slow.jitter), (7, 0.1));
        assert!(slow.faults.fail_load && !usual.faults.fail_load);
    }

    #[test]
    fn unknown_keys_are_refused_at_every_level_and_named_with_what_is_allowed() {
        let cases = [
            (
                r#"{"coast": {}}"#,
                "coast: unknown field `coast`, expected one of `seed`, `cost`,",
            ),
            (
                r#"{"cost": {"tokn_us": 1}}"#,
                "cost.tokn_us: unknown field `tokn_us`, expected one of `batch_ms`, `token_us`, `squared_token_ns`, `item_us`",
            ),
            (r#"{"stalls": {"p": 1}}"#, "stalls.p: unknown field"),
            (r#"{"faults": {"crash": 1}}"#, "faults.crash: unknown field"),
            (
                r#"{"devices": {"sim:1": {"cost": {"tokn_us": 1}}}}"#,
                "devices.sim:1.cost.tokn_us: unknown field",
            ),
            (
                r#"{"devices": {"sim:1": {"coast": 1}}}"#,
                "devices.sim:1.coast: unknown field",
            ),
            (
                r#"{"devices": {"cuda:0": {}}}"#,
                "devices.cuda:0: is no simulated device",
            ),
            (
                r#"{"devices": {"sim:0": {"devices": {}}}}"#,
                "devices.sim:0.devices: stands at the top level alone",
            ),
        ];
        for (text, expected) in cases {
            let said = refused(text);
            assert!(said.starts_with(expected), "{text}: {said}");
        }
    }

    #[test]
    fn values_out_of_range_are_refused_and_named() {
        let cases = [
            (
                r#"{"cost": {"batch_ms": -1}}"#,
                "cost.batch_ms: -1 is out of range: from 0 to 5000",
            ),
            (
                r#"{"faults": {"crash_probability": 1.5}}"#,
                "faults.crash_probability: 1.5 is out",
            ),
            (r#"{"jitter": "much"}"#, "jitter: invalid type: string"),
            (
                r#"{"memory_bytes": -1}"#,
                "memory_bytes: invalid value: integer `-1`",
            ),
            (
                r#"{"faults": {"crash_on_tokens": [[]]}}"#,
                "faults.crash_on_tokens: a row must",
            ),
            (
                r#"{"devices": {"sim:0": {"load_ms": 1e9}}}"#,
                "devices.sim:0.load_ms: 1000000000 is out of range",
            ),
            (r#"{"load_ms": 1e999}"#, "load_ms: number out of range"),
            ("[]", "the file: must be a JSON object"),
            ("", "the file: must be a JSON object"),
            ("{} {}", "the file: trailing characters"),
            (
                r#"{"jitter": 0.1, "jitter": 0.2}"#,
                "the file: duplicate field `jitter`",
            ),
        ];
        for (text, expected) in cases {
            let said = refused(text);
            assert!(said.starts_with(expected), "{text}: {said}");
        }
    }

    #[test]
    fn a_file_that_is_not_there_is_named() {
        let missing = SimFile::read(Path::new("/nowhere/sim.json")).unwrap_err();
        assert_eq!(
            missing.to_string(),
            "the sim file /nowhere/sim.json cannot be read: No such file or directory (os error 2)"
        );
    }
}
