//! How this process was started: alone, or as one of several ranks, and by what. `docs/launch.md` has the same table.

use std::collections::BTreeMap;

use crate::error::UserError;

/// What a launcher tells in the environment.
struct Launcher {
    name: &'static str,
    rank: &'static str,
    ranks: &'static str,
    /// A variable that is set too, and one that is not, where others use the same names.
    with: Option<&'static str>,
    without: Option<&'static str>,
}

const fn launcher(name: &'static str, rank: &'static str, ranks: &'static str) -> Launcher {
    Launcher { name, rank, ranks, with: None, without: None }
}

/// In this order; the first that is there counts, since a launcher may itself have been started by one further down.
const LAUNCHERS: &[Launcher] = &[
    launcher("mpirun", "OMPI_COMM_WORLD_RANK", "OMPI_COMM_WORLD_SIZE"),
    // A batch script has SLURM_PROCID too, but no step of several tasks.
    launcher("srun", "SLURM_PROCID", "SLURM_STEP_NUM_TASKS"),
    launcher("mpirun", "PMI_RANK", "PMI_SIZE"),
    Launcher { with: Some("LOCAL_RANK"), ..launcher("torchrun", "RANK", "WORLD_SIZE") },
    // There RANK counts nodes.
    Launcher { without: Some("LOCAL_RANK"), ..launcher("a Kubernetes job", "RANK", "WORLD_SIZE") },
];

/// The same for `oases train --help`.
pub const HELP: &str = "\
Started once, the program runs all ranks as threads. Started by mpirun or srun as several processes (cargo feature mpi), each
is one rank, and parallel.data × parallel.pipeline × parallel.tensor must be their number. MPI must have started them, whatever
says so; a place is taken from the first of:
  --rank, --ranks                              on the command line
  OMPI_COMM_WORLD_RANK, OMPI_COMM_WORLD_SIZE   mpirun of Open MPI
  SLURM_PROCID, SLURM_STEP_NUM_TASKS           srun
  PMI_RANK, PMI_SIZE                           mpirun of MPICH
  RANK, WORLD_SIZE with LOCAL_RANK             torchrun
  RANK, WORLD_SIZE without LOCAL_RANK          a Kubernetes job, where RANK is the node's";

/// All variables that are looked at.
pub const VARIABLES: &[&str] = &[
    "OMPI_COMM_WORLD_RANK",
    "OMPI_COMM_WORLD_SIZE",
    "SLURM_PROCID",
    "SLURM_STEP_NUM_TASKS",
    "PMI_RANK",
    "PMI_SIZE",
    "RANK",
    "WORLD_SIZE",
    "LOCAL_RANK",
];

/// What is said of a process that seems to be started alone: what a launcher has left unsaid, or that there is only one.
pub fn alone(variables: &BTreeMap<&'static str, String>, launched: Option<&Launched>) -> Option<String> {
    if let Some(Launched { source, .. }) = launched {
        return Some(format!("one process, started by {source}: all ranks are its threads"));
    }
    // Slurm sets the first of its two in every batch script.
    let pairs = LAUNCHERS.iter().filter(|launcher| launcher.name != "srun");
    pairs.map(|launcher| [launcher.rank, launcher.ranks]).find_map(|pair| {
        let [set, unset] = match pair.map(|name| variables.contains_key(name)) {
            [true, false] => pair,
            [false, true] => [pair[1], pair[0]],
            _ => return None,
        };
        Some(format!("{set} is set and {unset} is not: taken as started alone, all ranks are threads"))
    })
}

/// This process among those that were started together.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Launched {
    /// Its number.
    pub rank: usize,
    /// How many there are.
    pub ranks: usize,
    /// Where this is from.
    pub source: String,
}

/// Finds this process's place: from the options `--rank` and `--ranks`, or else from what a launcher has set. `None` where
/// nothing says that there are others.
pub fn detect(
    variables: &BTreeMap<&'static str, String>,
    explicit: (Option<usize>, Option<usize>),
) -> Result<Option<Launched>, UserError> {
    match explicit {
        (Some(rank), Some(ranks)) => return place(rank, ranks, "--rank and --ranks".to_owned()).map(Some),
        (None, None) => {}
        _ => {
            let message = "--rank and --ranks are given together or not at all";
            return Err(UserError::new(
                message,
                "without them, the place is taken from what mpirun or srun set",
            ));
        }
    }
    let set = |name: &str| variables.get(name);
    let found = LAUNCHERS.iter().find(|launcher| {
        set(launcher.rank).is_some()
            && launcher.with.is_none_or(|name| set(name).is_some())
            && launcher.without.is_none_or(|name| set(name).is_none())
            // A shell that Slurm has started is no step; RANK alone may be anybody's.
            && set(launcher.ranks).is_some()
    });
    let Some(launcher) = found else { return Ok(None) };
    let number = |name: &str| {
        let text = set(name).map_or("", String::as_str);
        text.parse::<usize>().map_err(|_| {
            UserError::new(
                format!("{name}=\"{text}\" is no number of ranks"),
                format!("{} sets it; unset it to run without, or give --rank and --ranks", launcher.name),
            )
        })
    };
    let (rank, ranks) = (number(launcher.rank)?, number(launcher.ranks)?);
    place(rank, ranks, format!("{} ({}={ranks})", launcher.name, launcher.ranks)).map(Some)
}

fn place(rank: usize, ranks: usize, source: String) -> Result<Launched, UserError> {
    if rank < ranks {
        return Ok(Launched { rank, ranks, source });
    }
    Err(UserError::new(
        format!("rank {rank} of {ranks} ranks, from {source}: there is no such rank"),
        "ranks count from 0",
    ))
}

impl Launched {
    #[cfg(any(feature = "mpi", test))]
    /// Whether there are as many processes as the configuration wants ranks: `axes` are data, pipeline and tensor.
    pub fn expect(&self, axes: [usize; 3]) -> Result<(), UserError> {
        let wanted: usize = axes.iter().product();
        if wanted == self.ranks {
            return Ok(());
        }
        let [data, pipeline, tensor] = axes;
        Err(UserError::new(
            format!(
                "{} processes were started by {}, but the configuration is for {wanted} ranks",
                self.ranks, self.source
            ),
            format!(
                "parallel.data × parallel.pipeline × parallel.tensor = {data} × {pipeline} × {tensor} must be the \
                 number of processes"
            ),
        ))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn found(set: &[(&'static str, &str)]) -> Result<Option<Launched>, UserError> {
        for (name, _) in set {
            assert!(VARIABLES.contains(name), "{name} is never read");
        }
        detect(&set.iter().map(|(name, value)| (*name, (*value).to_owned())).collect(), (None, None))
    }

    #[test]
    fn every_launcher_is_known() {
        for (set, rank, ranks, source) in [
            (
                &[
                    ("OMPI_COMM_WORLD_RANK", "1"),
                    ("OMPI_COMM_WORLD_SIZE", "4"),
                    ("PMI_RANK", "0"),
                    ("PMI_SIZE", "1"),
                ][..],
                1,
                4,
                "mpirun (OMPI_COMM_WORLD_SIZE=4)",
            ),
            (&[("PMI_RANK", "2"), ("PMI_SIZE", "3")], 2, 3, "mpirun (PMI_SIZE=3)"),
            (&[("SLURM_PROCID", "0"), ("SLURM_STEP_NUM_TASKS", "2")], 0, 2, "srun (SLURM_STEP_NUM_TASKS=2)"),
            (&[("RANK", "1"), ("WORLD_SIZE", "2"), ("LOCAL_RANK", "1")], 1, 2, "torchrun (WORLD_SIZE=2)"),
            (&[("RANK", "1"), ("WORLD_SIZE", "2")], 1, 2, "a Kubernetes job (WORLD_SIZE=2)"),
        ] {
            assert_eq!(found(set), Ok(Some(Launched { rank, ranks, source: source.to_owned() })));
        }
    }

    #[test]
    fn the_help_names_every_variable() {
        for launcher in LAUNCHERS {
            assert!(HELP.contains(launcher.rank) && HELP.contains(launcher.ranks), "{}", launcher.name);
        }
    }

    #[test]
    fn what_says_nothing_of_others_is_no_launcher() {
        assert_eq!(found(&[]), Ok(None));
        assert_eq!(found(&[("SLURM_PROCID", "0")]), Ok(None));
        assert_eq!(found(&[("RANK", "3")]), Ok(None));
        assert_eq!(found(&[("LOCAL_RANK", "3")]), Ok(None));
    }

    #[test]
    fn half_of_a_pair_is_told() {
        let told = |name: &'static str| alone(&BTreeMap::from([(name, "1".to_owned())]), None);
        assert_eq!(
            told("WORLD_SIZE").unwrap(),
            "WORLD_SIZE is set and RANK is not: taken as started alone, all ranks are threads"
        );
        assert!(told("OMPI_COMM_WORLD_RANK").unwrap().contains("OMPI_COMM_WORLD_SIZE is not"));
        assert_eq!((told("SLURM_PROCID"), told("LOCAL_RANK")), (None, None));
        let one = found(&[("PMI_RANK", "0"), ("PMI_SIZE", "1")]).unwrap();
        assert_eq!(
            alone(&BTreeMap::new(), one.as_ref()).unwrap(),
            "one process, started by mpirun (PMI_SIZE=1): all ranks are its threads"
        );
    }

    #[test]
    fn options_come_first_and_contradictions_are_refused() {
        let set = BTreeMap::from([("RANK", "0".to_owned()), ("WORLD_SIZE", "8".to_owned())]);
        let launched = detect(&set, (Some(1), Some(2))).unwrap().unwrap();
        assert_eq!((launched.rank, launched.ranks), (1, 2));
        for explicit in [(Some(2), Some(2)), (Some(0), None), (None, Some(2))] {
            assert!(detect(&set, explicit).is_err(), "{explicit:?}");
        }
        for value in ["x", "-1", "2"] {
            assert!(found(&[("RANK", value), ("WORLD_SIZE", "2")]).is_err(), "{value}");
        }
        assert_eq!(launched.expect([1, 2, 1]), Ok(()));
        assert_eq!(
            launched.expect([2, 1, 2]).unwrap_err().to_string(),
            "2 processes were started by --rank and --ranks, but the configuration is for 4 ranks"
        );
    }
}
