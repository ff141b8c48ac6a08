//! One run of the label-setting programme through a chain from both ends, up to a bound, with room for so many labels.

use super::super::answer::Work;
use super::super::chain::{FORBIDDEN, NANOSECOND, NEVER};
use super::{Branch, Way};

/// With how many others a label is compared. Those that dominate it are nearly always among the next cheaper ones, and what
/// is kept without need costs time only.
const COMPARED: usize = 32;

/// A label, without its amounts of resources.
#[derive(Clone, Copy)]
struct Label {
    cost: u64,
    /// Its cost and its amounts, priced.
    price: i128,
    /// Its place among the labels of the stage before.
    parent: u32,
    /// The choice it ends with.
    choice: u32,
}

/// Labels, and behind each other the amounts of resources of the first, of the second …
struct Labels {
    list: Vec<Label>,
    amounts: Vec<u64>,
    resources: usize,
}

impl Labels {
    fn none(resources: usize) -> Labels {
        Labels { list: Vec::new(), amounts: Vec::new(), resources }
    }

    fn amounts(&self, place: usize) -> &[u64] {
        &self.amounts[place * self.resources..(place + 1) * self.resources]
    }

    fn push(&mut self, label: Label, amounts: &[u64]) {
        self.list.push(label);
        self.amounts.extend_from_slice(amounts);
    }

    /// Adds those of `other` at these places.
    fn extend(&mut self, other: &Labels, places: &[usize]) {
        places.iter().for_each(|place| self.push(other.list[*place], other.amounts(*place)));
    }

    /// The places of labels that end with a choice, the lowest price first.
    fn ending_with(&self, choice: usize) -> Vec<usize> {
        let is_wanted = |place: &usize| self.list[*place].choice as usize == choice;
        let mut places: Vec<usize> = (0..self.list.len()).filter(is_wanted).collect();
        places.sort_by_key(|place| self.list[*place].price);
        places
    }

    /// The places of labels that fewer than two others dominate, in their order. All end with the same choice and are in the
    /// order of their choices, which decides between those that cost the same.
    fn undominated(&self) -> Vec<usize> {
        let mut order: Vec<(u64, usize)> =
            self.list.iter().enumerate().map(|(place, label)| (label.cost, place)).collect();
        order.sort_unstable();
        let mut kept: Vec<usize> = Vec::new();
        for (_, place) in order {
            let own = self.amounts(place);
            let dominates = |other: &&usize| self.amounts(**other).iter().zip(own).all(|(a, b)| a <= b);
            if kept.iter().rev().take(COMPARED).filter(dominates).take(2).count() < 2 {
                kept.push(place);
            }
        }
        kept.sort_unstable();
        kept
    }
}

/// How far the labels of one direction have come.
struct Front<'a> {
    way: &'a Way,
    /// Whether this direction is against the order of stages, so that of two choices the later made one decides.
    is_backward: bool,
    /// How many stages they have passed.
    stages: usize,
    /// Those at the last of these stages, in the order of their choices.
    labels: Labels,
    /// Of each label of each stage its parent and its choice, to read assignments back.
    history: Vec<Vec<(u32, u32)>>,
}

impl Front<'_> {
    /// The choices that led to a label, the last made one first.
    fn read_back(&self, mut place: usize) -> Vec<usize> {
        let back = self.history.iter().rev().map(|labels| {
            let (parent, choice) = labels[place];
            place = parent as usize;
            choice as usize
        });
        back.collect()
    }
}

/// What a run needs to know.
pub(super) struct Run<'a> {
    pub(super) branch: &'a Branch,
    pub(super) budgets: &'a [u64],
    /// Labels with a greater bound are left out, in 1/[`NANOSECOND`].
    pub(super) reach: i128,
    /// How many labels a stage may keep.
    pub(super) room: usize,
}

/// What came of a run.
#[derive(Default)]
pub(super) struct Outcome {
    /// The two first of the assignments that were looked at.
    pub(super) first_two: Vec<Vec<usize>>,
    /// The least bound of a label that was left out, in 1/[`NANOSECOND`].
    pub(super) least_left_out: Option<i128>,
    /// Whether any was left out for lack of room.
    pub(super) was_full: bool,
    pub(super) work: Work,
}

impl Outcome {
    fn leave_out(&mut self, bound: i128) {
        self.least_left_out = Some(self.least_left_out.map_or(bound, |least| least.min(bound)));
    }
}

impl Run<'_> {
    pub(super) fn through(&self) -> Outcome {
        let mut outcome = Outcome::default();
        let mut forward = self.front(&self.branch.forward);
        let mut backward = Front { is_backward: true, ..self.front(&self.branch.backward) };
        self.advance(&mut forward, &mut outcome);
        self.advance(&mut backward, &mut outcome);
        // Both pass the stage in which they meet.
        while forward.stages + backward.stages < forward.way.chain.stages() + 1 {
            let effort = |front: &Front| (front.labels.list.len(), front.stages);
            let next = if effort(&forward) <= effort(&backward) { &mut forward } else { &mut backward };
            self.advance(next, &mut outcome);
        }
        self.join(&forward, &backward, &mut outcome);
        outcome
    }

    /// Before the first stage, with one label, of nothing.
    fn front<'a>(&self, way: &'a Way) -> Front<'a> {
        let mut labels = Labels::none(self.budgets.len());
        labels.push(Label { cost: 0, price: 0, parent: 0, choice: 0 }, &vec![0; self.budgets.len()]);
        Front { way, is_backward: false, stages: 0, labels, history: Vec::new() }
    }

    /// Extends all labels by a stage.
    fn advance(&self, front: &mut Front, outcome: &mut Outcome) {
        let mut extended = Labels::none(self.budgets.len());
        for choice in 0..front.way.chain.width(front.stages) {
            let labels = self.extended_by(front, choice, outcome);
            let undominated = labels.undominated();
            outcome.work.dominated += (labels.list.len() - undominated.len()) as u64;
            extended.extend(&labels, &undominated);
        }
        front.labels = self.make_room(front, &extended, outcome);
        front.history.push(front.labels.list.iter().map(|label| (label.parent, label.choice)).collect());
        front.stages += 1;
        outcome.work.explored += front.labels.list.len() as u64;
    }

    /// All labels, extended by one choice of the next stage, as far as budgets and reach allow.
    fn extended_by(&self, front: &Front, choice: usize, outcome: &mut Outcome) -> Labels {
        let Way { chain, to_go, least_amounts } = front.way;
        let stage = front.stages;
        let mut extended = Labels::none(self.budgets.len());
        let (own_cost, after) = (chain.cost(stage, choice), to_go.after(stage, choice));
        if own_cost == FORBIDDEN || after == NEVER {
            return extended;
        }
        let own = chain.amounts(stage, choice);
        let own_price = self.branch.prices.of(own_cost, own);
        // Of each budget, what the other stages leave at most.
        let budgets = self.budgets.iter().zip(least_amounts);
        let left: Vec<i128> =
            budgets.map(|(budget, least)| i128::from(*budget) - least.after(stage, choice)).collect();
        let rest = after - self.branch.budgets_price;
        let mut lowest_left_out = NEVER;
        let mut amounts = vec![0; own.len()];
        for (place, label) in front.labels.list.iter().enumerate() {
            let arrival = chain.arrival(stage, label.choice as usize, choice);
            if arrival == FORBIDDEN {
                continue;
            }
            let price = label.price + self.branch.prices.of_cost(arrival) + own_price;
            if price + rest > self.reach {
                outcome.work.pruned += 1;
                lowest_left_out = lowest_left_out.min(price);
                continue;
            }
            for ((sum, so_far), own) in amounts.iter_mut().zip(front.labels.amounts(place)).zip(own) {
                *sum = so_far + own;
            }
            if amounts.iter().zip(&left).any(|(amount, left)| i128::from(*amount) > *left) {
                outcome.work.pruned += 1;
                continue;
            }
            let cost = label.cost + arrival + own_cost;
            extended.push(Label { cost, price, parent: place as u32, choice: choice as u32 }, &amounts);
        }
        if lowest_left_out != NEVER {
            outcome.leave_out(lowest_left_out + rest);
        }
        extended
    }

    /// Brings labels into the order of their choices, and if there are too many keeps those with the least bounds.
    fn make_room(&self, front: &Front, labels: &Labels, outcome: &mut Outcome) -> Labels {
        let mut places: Vec<usize> = (0..labels.list.len()).collect();
        if places.len() > self.room {
            let bound = |place: usize| {
                let Label { price, choice, .. } = labels.list[place];
                price + front.way.to_go.after(front.stages, choice as usize) - self.branch.budgets_price
            };
            let by_bound = |place: &usize| (bound(*place), *place);
            let (_, left_out, _) = places.select_nth_unstable_by_key(self.room, by_bound);
            outcome.leave_out(bound(*left_out));
            outcome.was_full = true;
            places.truncate(self.room);
        }
        places.sort_by_cached_key(|place| {
            let Label { parent, choice, .. } = labels.list[*place];
            if front.is_backward { (choice, parent) } else { (parent, choice) }
        });
        let mut kept = Labels::none(labels.resources);
        kept.extend(labels, &places);
        kept
    }

    /// Finds the two first of all pairs of labels that meet in the same choice.
    fn join(&self, forward: &Front, backward: &Front, outcome: &mut Outcome) {
        let (chain, stage) = (&forward.way.chain, forward.stages - 1);
        // Both sides are in the order of their choices, so places decide between pairs that cost the same.
        let mut first_two: Vec<(u64, usize, usize)> = Vec::new();
        let mut reach = self.reach;
        for choice in 0..chain.width(stage) {
            let [ahead, behind] = [forward, backward].map(|front| front.labels.ending_with(choice));
            if ahead.is_empty() || behind.is_empty() {
                continue;
            }
            // Both sides count the stage in which they meet.
            let (own_cost, own) = (chain.cost(stage, choice), chain.amounts(stage, choice));
            let counted_twice = self.branch.prices.of(own_cost, own) + self.branch.budgets_price;
            for a in ahead {
                let label = forward.labels.list[a];
                for b in behind.iter().copied() {
                    let other = backward.labels.list[b];
                    let bound = label.price + other.price - counted_twice;
                    if bound > reach {
                        outcome.leave_out(bound);
                        break;
                    }
                    let pair = (label.cost + other.cost - own_cost, a, b);
                    if first_two.get(1).is_some_and(|second| pair > *second) {
                        continue;
                    }
                    let amounts = forward.labels.amounts(a).iter().zip(backward.labels.amounts(b)).zip(own);
                    let mut sums = amounts.map(|((a, b), own)| a + b - own);
                    if sums.by_ref().zip(self.budgets).all(|(sum, budget)| sum <= *budget) {
                        first_two.push(pair);
                        first_two.sort_unstable();
                        first_two.truncate(2);
                    }
                    if let Some((cost, ..)) = first_two.get(1) {
                        reach = reach.min(i128::from(*cost) * NANOSECOND);
                    }
                }
            }
        }
        outcome.first_two = first_two
            .into_iter()
            .map(|(_, a, b)| {
                let before = forward.read_back(a).into_iter().rev();
                before.chain(backward.read_back(b).into_iter().skip(1)).collect()
            })
            .collect();
    }
}
