//! Why there is no prediction, sorted by what has to be mended.

/// Why there is no prediction.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum Error {
    /// A machine description with a figure that cannot be.
    #[error("`{key}` {problem}")]
    Machine {
        /// The key, with its section: `device.peak_tflops`.
        key: String,
        /// What is wrong with it.
        problem: String,
    },
    /// A profile with an entry that cannot be.
    #[error("{entry}: {problem}")]
    Profile {
        /// The entry.
        entry: String,
        /// What is wrong with it.
        problem: String,
    },
    /// A profile of something else than what is asked about.
    #[error("the profile is of another {what}: {differences}")]
    OtherProfile {
        /// `model` or `backend`.
        what: &'static str,
        /// `hidden 192 instead of 256`, each field that differs.
        differences: String,
    },
    /// A duration that the profile does not have.
    #[error("{what} was not measured; {measured}")]
    NotMeasured {
        /// What is asked for, with its size.
        what: String,
        /// Which sizes there are.
        measured: String,
    },
    /// More ranks than the machine joins.
    #[error("a group of {asked} ranks does not fit on `{machine}`, which joins {joined}")]
    TooManyRanks {
        /// Ranks of the group, or those that a part of it spans.
        asked: u32,
        /// Ranks of the outermost link.
        joined: u32,
        /// Name of the machine.
        machine: String,
    },
    /// A duration that no step has.
    #[error("{what} would take longer than 11 days")]
    TooLong {
        /// Which instruction.
        what: String,
    },
    /// Stages that wait for each other.
    #[error("the pipeline stands still: {what}")]
    Deadlock {
        /// Which stage waits for what.
        what: String,
    },
    /// Schedules that cannot be simulated.
    #[error("{0}")]
    Unsupported(String),
}

impl Error {
    /// What can be done about it.
    pub fn hint(&self) -> &'static str {
        match self {
            Error::Machine { .. } => "figures are numbers above 0, with the unit in the name of the key",
            Error::Profile { .. } => "`oases profile` writes profiles; edit nothing in them but comments",
            Error::OtherProfile { .. } => "`oases profile` measures this configuration on this machine",
            Error::NotMeasured { .. } => {
                "measure it with `oases profile`; sizes between two measured ones are interpolated, others are not"
            }
            Error::TooManyRanks { .. } => {
                "lower the ranks of `parallel`, or describe the next level of links in a [[link]] of the machine"
            }
            Error::TooLong { .. } => "check the units of the rates that it is computed from",
            Error::Deadlock { .. } => {
                "every `send` needs its `recv`, in the same order, before what waits for it"
            }
            Error::Unsupported(_) => "give the schedule of each stage, in order",
        }
    }
}
