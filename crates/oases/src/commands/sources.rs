//! Where predictions take durations from, as costs and in words.

use std::path::Path;

use oases_plan::{
    Costs, Error, Machine, MachineCosts, Profile, ProfileCosts, PublishedCosts, PublishedTable, Ring, Shape,
};
use oases_schedule::{Bytes, Model, Workspace};

use super::machine_files;
use super::measuring::BACKEND;
use super::over_ring::OverRing;
use crate::config::RunConfig;
use crate::environment::Environment;
use crate::error::UserError;

/// Where durations come from.
pub enum Source {
    /// The description of a machine.
    Machine(Machine),
    /// A profile from a file.
    Profile(Profile),
    /// A profile that was taken for this prediction.
    Measured(Profile),
    /// Published block times, and the machine whose links and memory go with them.
    Table(PublishedTable, Machine),
}

impl Source {
    /// What the options `--machine` and `--profile` name; at least one is given.
    pub fn read(
        machine: Option<&Path>,
        profile: Option<&Path>,
        config: &RunConfig,
        model: &Model,
        environment: &Environment,
    ) -> Result<Source, UserError> {
        let described = machine.map(|name| machine_files::machine(name, environment)).transpose()?;
        let Some(path) = profile else {
            return Ok(Source::Machine(described.expect("the command line has one of the two")));
        };
        if path.extension().is_some_and(|extension| extension.eq_ignore_ascii_case("csv")) {
            let Some(machine) = described else {
                return Err(UserError::new(
                    format!(
                        "{} is a table of block times, which says nothing of links and memory",
                        path.display()
                    ),
                    "name the machine too, for example `--machine rtx3090-cluster`",
                ));
            };
            return Ok(Source::Table(machine_files::table(path, environment)?, machine));
        }
        if described.is_some() {
            return Err(UserError::new(
                format!("--machine goes with a table of block times, and {} is a profile", path.display()),
                "leave --machine out: a profile has the times of its own machine",
            ));
        }
        let profile = machine_files::profile(path, environment)?;
        profile.check_is_of(&Shape::of(&config.model.family, model), BACKEND).map_err(told)?;
        Ok(Source::Profile(profile))
    }

    /// What `model` costs; over `link` instead of what the source has, if given.
    pub fn costs<'a>(
        &'a self,
        model: &'a Model,
        link: Option<Ring>,
    ) -> Result<Box<dyn Costs + 'a>, UserError> {
        Ok(match self {
            Source::Machine(machine) => Box::new(MachineCosts::new(machine, model, link)),
            Source::Profile(profile) | Source::Measured(profile) => {
                Box::new(ProfileCosts::new(profile, link))
            }
            Source::Table(table, machine) => {
                let costs = PublishedCosts::new(Some(table), machine, model, None).map_err(told)?;
                let interference = costs.interference();
                match link {
                    None => Box::new(costs),
                    Some(ring) => Box::new(OverRing { costs: Box::new(costs), ring, interference }),
                }
            }
        })
    }

    /// What `model` costs where instructions only last, over this link: they take nothing from each other.
    pub fn lasting<'a>(&'a self, model: &'a Model, ring: Ring) -> Result<OverRing<'a>, UserError> {
        Ok(OverRing { costs: self.costs(model, None)?, ring, interference: 1.0 })
    }

    /// What the backend that it tells of wants as workspace.
    pub fn workspace(&self, of_backend: Workspace) -> Workspace {
        match self {
            Source::Machine(_) | Source::Table(..) => Workspace::default(),
            Source::Profile(_) | Source::Measured(_) => of_backend,
        }
    }

    /// Memory of one device, where it is known.
    pub fn device_bytes(&self) -> Option<Bytes> {
        match self {
            Source::Machine(machine) | Source::Table(_, machine) => {
                Some(Bytes((machine.device.memory_gb * (1_u64 << 30) as f64) as u64))
            }
            Source::Profile(_) | Source::Measured(_) => None,
        }
    }

    /// Its kind: `machine`, `profile`, `table` or `measured`.
    pub fn name(&self) -> &'static str {
        match self {
            Source::Machine(_) => "machine",
            Source::Profile(_) => "profile",
            Source::Measured(_) => "measured",
            Source::Table(..) => "table",
        }
    }

    /// The machine that it tells of.
    pub fn machine_words(&self) -> String {
        match self {
            Source::Machine(machine) => machine.name.clone(),
            Source::Profile(profile) | Source::Measured(profile) => {
                let origin = &profile.profile;
                format!("{}, {} backend, {}", origin.machine, origin.backend, origin.created)
            }
            Source::Table(_, machine) => format!("published block times; {}", machine.name),
        }
    }

    /// Figures of the machine that are estimates.
    pub fn estimates(&self) -> Vec<String> {
        match self {
            Source::Machine(machine) | Source::Table(_, machine) => machine.estimates(),
            Source::Profile(_) | Source::Measured(_) => Vec::new(),
        }
    }

    /// What is between the ranks of a group.
    pub fn link_words(&self, config: &RunConfig) -> Result<String, UserError> {
        let ranks = config.parallel.ranks() as u32;
        if ranks == 1 {
            return Ok("none, there is one rank".to_owned());
        }
        if let Some(link) = &config.link {
            return Ok(format!("{}, {} a hop; of the configuration", link.bandwidth, link.latency));
        }
        Ok(match self {
            Source::Machine(machine) | Source::Table(_, machine) => {
                let levels = machine.spanned(ranks).map_err(told)?.iter();
                let levels = levels.map(|level| {
                    format!("{}, {} GB/s, {} us a hop", level.name, level.bandwidth_gb_s, level.latency_us)
                });
                levels.collect::<Vec<_>>().join("; ")
            }
            Source::Profile(profile) | Source::Measured(profile) => match &profile.link {
                Some(link) => {
                    format!("{} Gbit/s, {} us a hop; of the profile", link.bandwidth_gbit_s, link.latency_us)
                }
                None => "none but shared memory, as in the profile".to_owned(),
            },
        })
    }
}

/// The link of the configuration.
pub fn link(config: &RunConfig) -> Option<Ring> {
    config.link.as_ref().map(|link| Ring {
        bandwidth_bytes_per_s: link.bandwidth.bytes_per_second(),
        latency_s: link.latency.duration().as_secs_f64(),
    })
}

/// Tells an error of prediction to the user.
pub fn told(error: Error) -> UserError {
    UserError::new(error.to_string(), error.hint())
}
