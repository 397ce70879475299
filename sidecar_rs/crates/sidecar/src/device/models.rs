//! The models of a device and how far each has come: pure state.

use std::collections::HashMap;
use std::sync::Arc;

use shoal_proto::shoal::runtime::v1::Load;
use shoal_proto::shoal::sidecar::v1::{LoadModel, ModelState, ModelStatus};

use crate::model::Model;

/// Models whose units can be tokenized, by profile digest.
pub type Tokenizable = Arc<HashMap<String, Arc<Model>>>;

#[derive(Default)]
pub struct Models {
    slots: HashMap<String, Slot>,
}

struct Slot {
    load: Load,
    model: Option<Arc<Model>>,
    stage: Stage,
    /// A runtime of this device has had it.
    proven: bool,
}

#[derive(Debug, Clone, PartialEq, Eq)]
enum Stage {
    /// Its files are being read.
    Reading,
    /// The runtime is away, or loads it.
    Loading,
    Ready {
        memory_bytes: u64,
    },
    Failed {
        error: String,
    },
}

impl Models {
    /// Whether its files are to be read: it is new here, or failed before.
    pub fn wanted(&mut self, load: &LoadModel) -> bool {
        let is_known = self.slots.get(&load.profile_digest).is_some_and(|slot| {
            let failed = matches!(slot.stage, Stage::Failed { .. });
            !failed
        });
        if is_known {
            return false;
        }
        let slot = Slot {
            load: Load {
                profile_digest: load.profile_digest.clone(),
                profile_json: load.profile_json.clone(),
                folder: load.folder.clone(),
            },
            model: None,
            stage: Stage::Reading,
            proven: false,
        };
        self.slots.insert(load.profile_digest.clone(), slot);
        true
    }

    /// Its files were read. Returns what to ask the runtime, unless it was unloaded or failed
    /// meanwhile.
    pub fn read(&mut self, model: Arc<Model>) -> Option<Load> {
        let slot = self.slots.get_mut(&model.digest)?;
        if slot.stage != Stage::Reading {
            return None;
        }
        slot.stage = Stage::Loading;
        slot.model = Some(model);
        Some(slot.load.clone())
    }

    /// The runtime has it.
    pub fn loaded(&mut self, digest: &str, memory_bytes: u64) {
        self.set(digest, Stage::Ready { memory_bytes });
        if let Some(slot) = self.slots.get_mut(digest) {
            slot.proven = true;
        }
    }

    /// It cannot be read, or cannot be loaded.
    pub fn failed(&mut self, digest: &str, error: String) {
        self.set(digest, Stage::Failed { error });
    }

    pub fn unload(&mut self, digest: &str) {
        self.slots.remove(digest);
    }

    /// The runtime is gone, and what it had with it. Returns the models that were ready.
    pub fn runtime_gone(&mut self) -> Vec<String> {
        let mut changed = Vec::new();
        for (digest, slot) in &mut self.slots {
            if matches!(slot.stage, Stage::Ready { .. }) {
                slot.stage = Stage::Loading;
                changed.push(digest.clone());
            }
        }
        changed
    }

    /// What a new runtime is to load, first what an earlier one has had.
    pub fn to_load(&self) -> Vec<Load> {
        let slots = self.slots.values();
        let loading = slots.filter(|slot| slot.stage == Stage::Loading);
        let (proven, new): (Vec<_>, Vec<_>) = loading.partition(|slot| slot.proven);
        let in_order = proven.into_iter().chain(new);
        in_order.map(|slot| slot.load.clone()).collect()
    }

    pub fn is_ready(&self, digest: &str) -> bool {
        let slot = self.slots.get(digest);
        slot.is_some_and(|slot| matches!(slot.stage, Stage::Ready { .. }))
    }

    /// The models that are on their way.
    pub fn loading(&self) -> Vec<String> {
        let loading = |slot: &Slot| matches!(slot.stage, Stage::Reading | Stage::Loading);
        let slots = self.slots.iter().filter(|(_, slot)| loading(slot));
        slots.map(|(digest, _)| digest.clone()).collect()
    }

    /// How a model stands, as its worker hears it. `progress` says what the runtime does.
    pub fn status(&self, digest: &str, progress: &str) -> Option<ModelStatus> {
        let slot = self.slots.get(digest)?;
        let mut status = ModelStatus {
            profile_digest: digest.to_owned(),
            ..ModelStatus::default()
        };
        match &slot.stage {
            Stage::Reading => {
                status.set_state(ModelState::Loading);
                status.progress = "its files are being read".to_owned();
            }
            Stage::Loading => {
                status.set_state(ModelState::Loading);
                status.progress = progress.to_owned();
            }
            Stage::Ready { memory_bytes } => {
                status.set_state(ModelState::Ready);
                status.memory_bytes = *memory_bytes;
            }
            Stage::Failed { error } => {
                status.set_state(ModelState::Failed);
                status.error.clone_from(error);
            }
        }
        Some(status)
    }

    pub fn tokenizable(&self) -> Tokenizable {
        let slots = self.slots.iter();
        let models = slots.filter_map(|(digest, slot)| Some((digest.clone(), slot.model.clone()?)));
        Arc::new(models.collect())
    }

    fn set(&mut self, digest: &str, stage: Stage) {
        if let Some(slot) = self.slots.get_mut(digest) {
            slot.stage = stage;
        }
    }
}
