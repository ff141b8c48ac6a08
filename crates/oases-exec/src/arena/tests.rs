//! Tests of the arena: what it gives out, and every violation that it refuses.

use super::*;

fn span(offset: usize, bytes: usize) -> Span {
    Span { offset, bytes }
}

#[test]
fn is_zeroed_aligned_and_remembers() {
    let mut arena = Arena::new(1024).unwrap();
    assert_eq!(arena.bytes(), 1024);
    assert!(arena.read::<f32>(span(0, 1024)).iter().all(|value| value.to_bits() == 0));
    assert!(arena.read::<f32>(span(0, 4)).as_ptr().addr().is_multiple_of(4096));
    arena.write(span(64, 12)).copy_from_slice(&[1.0_f32, 2.0, 3.0]);
    assert_eq!(arena.read::<f32>(span(68, 8)), [2.0, 3.0]);
    assert_eq!(arena.read::<u32>(span(64, 4)), [0x3f80_0000]);
}

#[test]
fn huge_pages_for_large_arenas() {
    let arena = Arena::new(3 << 20).unwrap();
    assert!(arena.read::<f32>(span(0, 4)).as_ptr().addr().is_multiple_of(2 << 20));
}

#[test]
fn refuses_what_cannot_be_had_with_an_error() {
    let error = Arena::new(usize::MAX / 2 - 100).unwrap_err();
    assert!(error.to_string().starts_with("cannot allocate an arena of 8589934592.0 GiB (92"), "{error}");
    assert!(Arena::new(usize::MAX).is_err());
    assert!(Arena::new(0).is_ok());
}

#[test]
fn access_gives_disjoint_slices() {
    let mut arena = Arena::new(256).unwrap();
    arena.write(span(0, 8)).copy_from_slice(&[3.0_f32, 4.0]);
    let ([a, b, nothing], [y, z]) =
        arena.access([span(0, 8), span(4, 8), span(9999, 0)], [span(64, 8), span(128, 4)]);
    assert!(nothing.is_empty());
    y[0] = a[0] + b[0];
    z[0] = a[1];
    y[1] = 5.0;
    assert_eq!(arena.read::<f32>(span(64, 8)), [7.0, 5.0]);
    assert_eq!(arena.read::<f32>(span(128, 4)), [4.0]);
}

#[test]
fn claims_mix_types_and_may_be_absent() {
    let mut arena = Arena::new(256).unwrap();
    let mut claims = arena.claims();
    let tokens: &mut [u32] = claims.write(span(0, 8));
    let out: &mut [f32] = claims.write(span(64, 8));
    let bias = claims.read_optional::<f32>(Some(span(128, 8)));
    let none = claims.write_optional::<f32>(None);
    tokens.fill(7);
    out[0] = tokens[1] as f32 + bias.unwrap()[0];
    assert!(none.is_none());
    assert_eq!(arena.read::<f32>(span(64, 4)), [7.0]);
}

#[test]
fn touched_is_the_highest_end() {
    let mut arena = Arena::new(1024).unwrap();
    assert_eq!(arena.touched_bytes(), 0);
    arena.access([span(100, 4)], [span(0, 8)]);
    assert_eq!(arena.touched_bytes(), 104);
    arena.read::<f32>(span(1024, 0));
    assert_eq!(arena.touched_bytes(), 104);
    let region = arena.lend(span(512, 8));
    arena.give_back(region);
    assert_eq!(arena.touched_bytes(), 520);
    arena.forget_touched();
    assert_eq!(arena.touched_bytes(), 0);
}

#[test]
fn a_region_lives_on_another_thread_and_longer_than_the_arena() {
    let mut arena = Arena::new(1024).unwrap();
    let mut region = arena.lend(span(64, 64));
    let thread = std::thread::spawn(move || {
        region.fill(2.0);
        region
    });
    // The rest stays in use meanwhile.
    arena.write::<f32>(span(0, 64)).fill(1.0);
    let region = thread.join().unwrap();
    drop(arena);
    assert_eq!(region.iter().sum::<f32>(), 32.0);
}

#[test]
fn regions_split_and_join() {
    let mut arena = Arena::new(1024).unwrap();
    let (mut head, tail) = arena.lend(span(0, 64)).split_at(5);
    let (mut middle, tail) = tail.split_at(11);
    assert_eq!((head.len(), middle.len(), tail.len()), (5, 11, 0));
    std::thread::scope(|scope| {
        scope.spawn(|| head.fill(1.0));
        scope.spawn(|| middle.fill(2.0));
    });
    let whole = head.join(middle).join(tail);
    assert_eq!(whole.iter().sum::<f32>(), 27.0);
    arena.give_back(whole);
    assert_eq!(arena.read::<f32>(span(0, 64)).iter().sum::<f32>(), 27.0);
}

/// The message of the panic that `body` must end in, with an arena whose bytes 512..576 are lent.
fn message(body: impl FnOnce(&mut Arena)) -> String {
    let mut arena = Arena::new(1024).unwrap();
    let _region = arena.lend(span(512, 64));
    let body = std::panic::AssertUnwindSafe(|| body(&mut arena));
    let panic = std::panic::catch_unwind(body).expect_err("must panic");
    panic.downcast_ref::<String>().expect("a formatted message").clone()
}

#[test]
fn every_violation_panics() {
    type Case = (&'static str, fn(&mut Arena));
    let cases: [Case; 13] = [
        ("write of bytes 8..12 overlaps bytes 0..12, read by the same", |a| {
            a.access([span(0, 12)], [span(8, 4)]);
        }),
        ("write of bytes 8..12 overlaps bytes 0..12, written by the same", |a| {
            a.access([], [span(0, 12), span(8, 4)]);
        }),
        ("read of bytes 4..8 overlaps bytes 0..8, written by the same", |a| {
            let mut claims = a.claims();
            claims.write::<u32>(span(0, 8));
            claims.read::<f32>(span(4, 4));
        }),
        ("read of bytes 1020..1028 is out of bounds: the arena has 1024 bytes", |a| {
            a.access([span(1020, 8)], []);
        }),
        ("write of bytes 18446744073709551612..18446744073709551615 is out of bounds", |a| {
            a.write::<f32>(span(usize::MAX - 3, 8));
        }),
        ("read of bytes 2..6 is misaligned", |a| {
            a.read::<f32>(span(2, 4));
        }),
        ("read of bytes 4..10 is misaligned", |a| {
            a.read::<u32>(span(4, 6));
        }),
        ("read of bytes 572..580 overlaps bytes 512..576, which is lent", |a| {
            a.read::<f32>(span(572, 8));
        }),
        ("write of bytes 508..516 overlaps bytes 512..576, which is lent", |a| {
            a.access([], [span(508, 8)]);
        }),
        ("loan of bytes 0..1024 overlaps bytes 512..576, which is lent", |a| {
            a.lend(span(0, 1024));
        }),
        ("region of bytes 0..4 (loan 1) is only a part of the loan of bytes 0..8", |a| {
            let (head, _tail) = a.lend(span(0, 8)).split_at(1);
            a.give_back(head);
        }),
        ("region of bytes 0..8 (loan 0) belongs to another arena", |a| {
            a.give_back(Arena::new(64).unwrap().lend(span(0, 8)));
        }),
        ("region of bytes 64..72 (loan 2) does not continue region of bytes 0..8 (loan 1)", |a| {
            let head = a.lend(span(0, 8));
            let _ = head.join(a.lend(span(64, 8)));
        }),
    ];
    for (expected, body) in cases {
        let message = message(body);
        assert!(message.contains(expected), "expected `{expected}`, got `{message}`");
    }
}

#[test]
fn a_dropped_region_stays_lent() {
    let mut arena = Arena::new(64).unwrap();
    drop(arena.lend(span(0, 8)));
    let read = std::panic::AssertUnwindSafe(|| arena.read::<f32>(span(0, 8)).len());
    assert!(std::panic::catch_unwind(read).is_err());
}

#[test]
fn adjacent_loans_do_not_join() {
    let mut arena = Arena::new(64).unwrap();
    let (a, b) = (arena.lend(span(0, 8)), arena.lend(span(8, 8)));
    let join = std::panic::AssertUnwindSafe(|| a.join(b));
    assert!(std::panic::catch_unwind(join).is_err());
}
