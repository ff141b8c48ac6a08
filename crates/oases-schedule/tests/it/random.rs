//! Random schedules are valid, differ, and compute what the serial schedule computes.

use std::collections::BTreeSet;

use oases_schedule::passes::VARIANTS;
use oases_schedule::random::{candidate, schedule};
use oases_schedule::{Extent, Instruction, Keep, Pass, Schedule, Scope, verify};

use crate::layouts::{LAYOUTS, request};
use crate::meaning::meaning;

#[test]
fn every_candidate_is_valid_and_computes_the_same() {
    let mut rejected = 0;
    for (index, layout) in LAYOUTS.into_iter().enumerate() {
        let request = request(layout, 1 + index as u32 % 3, 1 + index as u32 % 2);
        let expected = meaning(&VARIANTS[0].build(&request)).unwrap();
        for seed in 0..30 {
            let candidate = candidate(seed, &request);
            rejected += usize::from(!verify(&candidate).is_empty());
            assert_eq!(meaning(&candidate).as_ref(), Ok(&expected), "{candidate}");
            assert_eq!(Schedule::parse(&candidate.to_string()).as_ref(), Ok(&candidate));
        }
    }
    assert_eq!(rejected, 0, "verifier and generator disagree about what depends on what");
}

#[test]
fn schedules_differ_in_what_they_keep_repeat_and_wait_for() {
    let request = request((2, "1*2 2*1 1*1 2*1 1*1"), 2, 2);
    let schedules: Vec<Schedule> = (0..100).map(|seed| schedule(seed, &request)).collect();
    let distinct: BTreeSet<&[Instruction]> = schedules.iter().map(|s| s.instructions.as_slice()).collect();
    assert_eq!(distinct.len(), schedules.len());
    assert_eq!(schedule(3, &request), schedules[3]);

    let has = |wanted: &dyn Fn(&Instruction) -> bool| {
        schedules.iter().filter(|schedule| schedule.instructions.iter().any(wanted)).count()
    };
    for keep in Keep::ALL {
        assert!(has(&|i| matches!(i, Instruction::Forward { keep: k, .. } if *k == keep)) > 30);
    }
    for extent in Extent::ALL {
        assert!(has(&|i| matches!(i, Instruction::Recompute { extent: e, .. } if *e == extent)) > 30);
    }
    for scope in Scope::ALL {
        assert!(has(&|i| matches!(i, Instruction::Backward { scope: s, .. } if *s == scope)) > 30);
    }
    for pass in Pass::ALL {
        assert!(has(&|i| matches!(i, Instruction::Tail { pass: p, .. } if *p == pass)) > 30);
    }
    // A recomputed border: where a block that is recomputed to its output stands before one that keeps nothing.
    assert!(has(&|i| matches!(i, Instruction::Reshard { pass: Pass::Recompute, .. })) > 10);
    let hoisted = |schedule: &&Schedule| {
        let at = |wanted: fn(&Instruction) -> bool| schedule.instructions.iter().position(wanted);
        at(|i| matches!(i, Instruction::Recompute { .. })) < at(|i| matches!(i, Instruction::Loss { .. }))
    };
    assert!(schedules.iter().filter(hoisted).count() > 30);
    // The share of collectives that nothing runs under.
    let blocking = |schedule: &Schedule| {
        let start = |i: &&Instruction| matches!(i, Instruction::Start { .. });
        let waits = |pair: &&[Instruction]| match pair {
            [Instruction::Start { collective, .. }, Instruction::Sync { collective: waited }] => {
                collective == waited
            }
            _ => false,
        };
        let blocking = schedule.instructions.windows(2).filter(waits).count();
        blocking * 100 / schedule.instructions.iter().filter(start).count()
    };
    let shares: Vec<usize> = schedules.iter().map(blocking).collect();
    assert!(shares.iter().any(|&share| share > 80) && shares.iter().any(|&share| share < 20), "{shares:?}");
}
