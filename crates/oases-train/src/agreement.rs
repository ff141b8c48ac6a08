//! What all ranks must agree on, and how they find out: every rank hears of an error of any.

use std::collections::BTreeMap;
use std::fmt::Display;

use oases_exec::comm::{CommunicatorError, HostGroup};

use crate::error::{Error, Result};

/// Before the text of an error that another rank hears of.
const TO_MEND: char = 'm';
const FAULT: char = 'f';

/// Returns `own` where no rank has an error. Where one has, all get one: its own, or that another rank has one.
pub(crate) fn all_succeed<T>(host: &impl HostGroup, own: Result<T>, doing: &str) -> Result<T> {
    let text = own.as_ref().err().map(|error| {
        let kind = if error.is_to_mend() { TO_MEND } else { FAULT };
        format!("{kind}{error}")
    });
    let verdict = decide(host, text.unwrap_or_default().into_bytes(), |texts| {
        let failed = texts.iter().enumerate().find(|(_, text)| !text.is_empty());
        failed.map(|(rank, text)| {
            let text = String::from_utf8_lossy(text);
            let (kind, text) = text.split_at(1);
            format!("{kind}rank {rank}: {text}")
        })
    });
    match (own, verdict) {
        (Err(own), _) => Err(own),
        (Ok(_), Err(lost)) => Err(Error::communicator(&lost, &format!(" ({doing})"))),
        (Ok(_), Ok(Some(other))) => {
            Err(Error::Elsewhere { message: other[1..].to_owned(), to_mend: other.starts_with(TO_MEND) })
        }
        (Ok(value), Ok(None)) => Ok(value),
    }
}

/// Compares facts that must be the same on all ranks, each by its digest. The error names the facts and the ranks that differ from
/// rank 0.
#[cfg(any(feature = "mpi", test))]
pub(crate) fn same_facts(host: &impl HostGroup, facts: &[(&str, u64)]) -> Result<()> {
    let bytes = facts.iter().flat_map(|(_, digest)| digest.to_le_bytes()).collect();
    let verdict = decide(host, bytes, |all| {
        let differs = |fact: usize| -> Vec<usize> {
            let of = |rank: usize| all[rank].get(8 * fact..8 * fact + 8);
            (1..all.len()).filter(|rank| of(*rank) != of(0)).collect()
        };
        let problems: Vec<String> = facts
            .iter()
            .enumerate()
            .map(|(fact, (name, _))| (name, differs(fact)))
            .filter(|(_, ranks)| !ranks.is_empty())
            .map(|(name, ranks)| format!("{name} of {} differs from that of rank 0", named(&ranks)))
            .collect();
        (!problems.is_empty()).then(|| problems.join("; "))
    });
    match verdict.map_err(|lost| Error::communicator(&lost, " (comparing the ranks)"))? {
        None => Ok(()),
        Some(problems) if host.rank() == 0 => {
            Err(Error::configuration(format!("ranks disagree: {problems}"))
                .with_hint("start all ranks with the same program, configuration and text files"))
        }
        Some(problems) => {
            Err(Error::Elsewhere { message: format!("ranks disagree: {problems}"), to_mend: true })
        }
    }
}

/// Compares digests under keys: where two ranks have the same key, they must have the same digest. `name` tells what a key is;
/// `when` stands at the end of the message.
pub(crate) fn same_where_shared(
    host: &impl HostGroup,
    own: &[([u32; 2], u64)],
    name: impl Fn([u32; 2]) -> String,
    when: impl Display,
) -> Result<()> {
    let bytes = own.iter().flat_map(|([index, place], digest)| {
        [index.to_le_bytes().as_slice(), &place.to_le_bytes(), &digest.to_le_bytes()].concat()
    });
    let verdict = decide(host, bytes.collect(), |all| {
        let mut first = BTreeMap::new();
        for (rank, bytes) in all.iter().enumerate() {
            for entry in bytes.chunks_exact(16) {
                let (key, digest) = entry.split_at(8);
                let (other, wanted) = *first.entry(key).or_insert((rank, digest));
                if wanted != digest {
                    let number =
                        |at: usize| u32::from_le_bytes([key[at], key[at + 1], key[at + 2], key[at + 3]]);
                    let what = name([number(0), number(4)]);
                    return Some(format!("ranks {other} and {rank} hold different {what} {when}"));
                }
            }
        }
        None
    });
    match verdict.map_err(|lost| Error::communicator(&lost, " (comparing weights)"))? {
        None => Ok(()),
        Some(problem) if host.rank() == 0 => Err(Error::rank(0, problem)),
        Some(message) => Err(Error::Elsewhere { message, to_mend: false }),
    }
}

/// Gathers bytes of all ranks, lets rank 0 find what is wrong with them, and tells everyone.
fn decide(
    host: &impl HostGroup,
    bytes: Vec<u8>,
    problem: impl FnOnce(&[Vec<u8>]) -> Option<String>,
) -> std::result::Result<Option<String>, CommunicatorError> {
    let all = host.gather(bytes)?;
    let verdict = host.broadcast(all.map(|all| problem(&all).unwrap_or_default().into_bytes()))?;
    Ok((!verdict.is_empty()).then(|| String::from_utf8_lossy(&verdict).into_owned()))
}

/// `rank 2` or `ranks 0, 2`.
#[cfg(any(feature = "mpi", test))]
fn named(ranks: &[usize]) -> String {
    let numbers: Vec<String> = ranks.iter().map(usize::to_string).collect();
    format!("{} {}", if ranks.len() == 1 { "rank" } else { "ranks" }, numbers.join(", "))
}

#[cfg(test)]
mod tests {
    use oases_exec::comm::local::{LocalHostGroup, LocalOptions, group};

    use super::*;

    /// What a function says on each rank of three.
    fn on_three(say: impl Fn(usize, &LocalHostGroup) -> Result<()> + Sync) -> Vec<String> {
        let hosts: Vec<_> = group(3, LocalOptions::default()).iter().map(|one| one.host_group()).collect();
        std::thread::scope(|scope| {
            let say = &say;
            let threads: Vec<_> = hosts
                .into_iter()
                .enumerate()
                .map(|(rank, host)| {
                    scope.spawn(move || say(rank, &host).map_or_else(|e| e.to_string(), |()| String::new()))
                })
                .collect();
            threads.into_iter().map(|thread| thread.join().unwrap()).collect()
        })
    }

    #[test]
    fn an_error_of_one_rank_reaches_all() {
        let told = on_three(|rank, host| {
            let own = if rank == 1 { Err(Error::configuration("no space")) } else { Ok(()) };
            let heard = all_succeed(host, own, "checkpoint");
            assert!(heard.as_ref().is_err_and(Error::is_to_mend), "all end with the same exit code");
            heard
        });
        assert_eq!(told, ["rank 1: no space", "no space", "rank 1: no space"]);
        assert_eq!(on_three(|_, host| all_succeed(host, Ok(()), "checkpoint")), ["", "", ""]);
    }

    #[test]
    fn facts_that_differ_are_named_with_their_ranks() {
        let told = on_three(|rank, host| {
            let data = if rank == 0 { 1 } else { 2 };
            let program = if rank == 2 { 8 } else { 7 };
            same_facts(host, &[("the configuration", 5), ("the data", data), ("the program", program)])
        });
        let wanted = "ranks disagree: the data of ranks 1, 2 differs from that of rank 0; \
                      the program of rank 2 differs from that of rank 0";
        assert_eq!(told, [wanted; 3]);
    }

    #[test]
    fn only_what_is_shared_is_compared() {
        let compare = |third: u64| {
            on_three(move |rank, host| {
                let own = [([4, 0], if rank == 2 { third } else { 9 }), ([5, rank as u32], rank as u64)];
                same_where_shared(
                    host,
                    &own,
                    |[index, place]| format!("weights {index}.{place}"),
                    "after step 3",
                )
            })
        };
        assert_eq!(compare(9), ["", "", ""]);
        let told = compare(8);
        assert_eq!(told[0], "rank 0: ranks 0 and 2 hold different weights 4.0 after step 3");
        assert_eq!(told[1..], ["ranks 0 and 2 hold different weights 4.0 after step 3"; 2]);
    }
}
