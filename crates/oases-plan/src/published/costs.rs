//! The published times and the fit to them, as costs of schedules.

use oases_schedule::{
    BlockId, Bytes, CollectiveId, CollectiveKind, Direction, Extent, Family, Model, Operation, Scope,
};

use super::fit::{BlockFit, BlockParts, BlockSize};
use super::table::PublishedTable;
use crate::costs::{CollectiveTime, Costs, Reach};
use crate::error::Error;
use crate::link::Ring;
use crate::machine::Machine;
use crate::time::Nanoseconds;

/// Tokens of a sequence, and width of a head, of everything in the table.
const SEQUENCE: usize = 1024;
const HEAD_DIM: usize = 64;

/// Passes of 32 bits over all parameters that PyTorch 1.10's Adam takes, one operator for each elementary step of the
/// formula. An estimate; it is 0.1-2 % of a step with 20 micro-batches.
const ADAM_PASSES: f64 = 16.0;

/// The ring in which data-parallel replicas reduce their gradients, once in a step.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct GradientRing {
    /// Number of replicas.
    pub replicas: u32,
    /// The ring between one rank of each.
    pub ring: Ring,
}

/// Costs of the benchmark model of the Oases paper: transformer layers, without embedding and head.
///
/// - Forward and backward of a block are those of the table up to the hidden sizes that it has, and those of the fit above
///   (everywhere, where there is no table).
/// - A recomputation takes the whole forward, although ours stops before the last product: the authors' implementation
///   runs the forward again.
/// - Parts of a forward or backward (the pieces of a product, the attention core) have the share of the whole that they
///   have in the fit. A share of floating-point operations would not do: the core has a fifth of the operations of
///   attention at hidden size 2048 and takes half of its time, for it passes over the scores many times.
/// - A block of any degree takes what the table has for that degree and the rank's share of the batch, which is the table's
///   batch of one TMP group.
/// - Dropout and residual are in the published block times. So a reshard, which does them where the degree changes, is one
///   operator here that copies the residual stream of the side that it comes from, and what completes the stream before another
///   pipeline stage nothing more. Gathers and transfers go over the links of the machine, and so does the reduction of
///   gradients between the replicas of a block inside the group.
/// - The step passes over the weights of the layers. In a mixed layout the share of a degree counts embedding and head too
///   ([`oases_schedule::Plan::parameter_shares`]): with a small vocabulary it hardly differs.
/// - Embedding, head, loss and norm cost nothing, and neither do their collectives, on purpose: the benchmark model does
///   not have them. So nothing is gathered either where the degree changes behind the embedding or before the head.
/// - The collective of the gradients is the reduction between data-parallel replicas of the whole group, of the weights of
///   all products as if every block had the degree of the group. In a mixed layout a rank holds more than that: there the
///   group is better taken as large as the machine, so that no such replicas are left.
#[derive(Clone, Copy, Debug)]
pub struct PublishedCosts<'a> {
    table: Option<&'a PublishedTable>,
    machine: &'a Machine,
    model: &'a Model,
    gradients: Option<GradientRing>,
}

impl<'a> PublishedCosts<'a> {
    /// Costs of a model with the proportions of the table's. `machine` has been checked; its links carry the collectives,
    /// its device is that of the fit. `gradients` is left out where there is one replica.
    pub fn new(
        table: Option<&'a PublishedTable>,
        machine: &'a Machine,
        model: &'a Model,
        gradients: Option<GradientRing>,
    ) -> Result<PublishedCosts<'a>, Error> {
        let fields = [
            ("sequence", model.sequence, SEQUENCE),
            ("width of a head", model.head_dim, HEAD_DIM),
            ("ffn", model.ffn, 4 * model.hidden),
            ("kv_heads", model.kv_heads, model.heads),
        ];
        match fields.iter().find(|(_, asked, published)| asked != published) {
            Some((name, asked, published)) => {
                let differences = format!("{name} {published} instead of {asked}");
                Err(Error::OtherProfile { what: "model", differences })
            }
            None => Ok(PublishedCosts { table, machine, model, gradients }),
        }
    }

    /// The fit on the device of the machine.
    pub fn fit(&self) -> BlockFit<'a> {
        BlockFit::new(&self.machine.device)
    }

    /// A block on so many sequences.
    pub fn size(&self, batch: u32, degree: u32) -> BlockSize {
        BlockSize {
            hidden: self.model.hidden as u32,
            heads: self.model.heads as u32,
            sequence: self.model.sequence as u32,
            degree,
            batch,
        }
    }

    /// Forward (`[0]`) and backward (`[1]`) of a block, in milliseconds.
    pub fn block_ms(&self, family: Family, batch: u32, degree: u32) -> Result<[f64; 2], Error> {
        let hidden = self.model.hidden as u32;
        match self.table.filter(|table| hidden <= table.greatest_hidden()) {
            Some(table) => {
                let times = table.times(hidden, degree, batch)?;
                Ok([times.forward_ms(family), times.backward_ms(family)])
            }
            None => {
                let (fit, size) = (self.fit(), self.size(batch, degree));
                Ok([fit.forward(family, size).sum_ms(), fit.backward_ms(family, size)])
            }
        }
    }

    /// The optimizer's step on one rank, in milliseconds.
    pub fn step_ms(&self, degree: u32) -> f64 {
        self.fit().step_ms(self.weights(degree), ADAM_PASSES)
    }

    /// The reduction of gradients between the replicas.
    pub fn gradients(&self, degree: u32) -> Result<Nanoseconds, Error> {
        let Some(GradientRing { replicas, ring }) = self.gradients else { return Ok(Nanoseconds::ZERO) };
        let bytes = Bytes(self.weights(degree) as u64 * self.machine.device.element_bytes);
        let too_long = || Error::TooLong { what: format!("reducing {bytes} of gradients") };
        ring.duration(CollectiveKind::AllReduce, bytes, replicas).ok_or_else(too_long)
    }

    /// Weights of the products of all layers, on one rank: 4h² of attention and 8h² of the MLP in each.
    fn weights(&self, degree: u32) -> f64 {
        12.0 * (self.model.hidden as f64).powi(2) * f64::from(self.model.layers) / f64::from(degree)
    }

    fn layer_operation_ms(&self, operation: Operation, batch: u32, degree: u32) -> Result<f64, Error> {
        let family = operation.family().expect("an operation of a layer");
        let [forward_ms, backward_ms] = self.block_ms(family, batch, degree)?;
        let (fit, size) = (self.fit(), self.size(batch, degree));
        let parts = fit.forward(family, size);
        let forward_scale = forward_ms / parts.sum_ms();
        let backward_scale = backward_ms / fit.backward_ms(family, size);
        let piece = |product: usize, of: u8| {
            fit.product_ms(BlockFit::products(family, size)[product] / f64::from(of))
        };
        let BlockParts { first_ms, core_ms, last_ms, .. } = parts;
        Ok(match operation {
            Operation::Forward(_, extent) | Operation::Recompute(_, extent) => match extent {
                Extent::Output | Extent::Saved => forward_ms,
                Extent::Body => forward_ms - forward_scale * last_ms,
                Extent::Core => forward_scale * core_ms,
            },
            Operation::Backward(_, scope) => match scope {
                Scope::All => backward_ms,
                Scope::Body => backward_ms - backward_scale * first_ms,
                // One of the two products that backward has for each of forward's.
                Scope::Weight => backward_scale * (first_ms + last_ms),
                Scope::Input => backward_ms - backward_scale * (first_ms + last_ms),
            },
            Operation::Tail(Direction::Forward, _, of, _) => forward_scale * piece(1, of),
            Operation::Tail(Direction::Backward, _, of, _) => backward_scale * piece(0, of),
            Operation::Reshard(_)
            | Operation::Complete(_)
            | Operation::Loss
            | Operation::Norm
            | Operation::Step => unreachable!("not of a layer"),
        })
    }
}

impl Costs for PublishedCosts<'_> {
    fn compute(&self, operation: Operation, sequences: u32, tensor: u32) -> Result<Nanoseconds, Error> {
        let ms = match (operation, operation.family()) {
            (Operation::Step, _) => self.step_ms(tensor),
            // Blocks of both sides have it in their times.
            (Operation::Complete(_), _) => 0.0,
            (Operation::Reshard(_), _) => self.fit().copy_ms(self.size(sequences, tensor)),
            (_, Some(Family::Attn | Family::Mlp)) => self.layer_operation_ms(operation, sequences, tensor)?,
            // The benchmark model has no embedding, no head, and clips no gradients.
            (_, Some(Family::Embed | Family::Head) | None) => 0.0,
        };
        let too_long = || Error::TooLong { what: format!("`{operation}` on {sequences} sequences") };
        Nanoseconds::from_seconds(ms / 1e3).ok_or_else(too_long)
    }

    fn collective(&self, kind: CollectiveKind, bytes: Bytes, reach: Reach) -> Result<CollectiveTime, Error> {
        // Plans count elements of 32 bits.
        let bytes = Bytes(bytes.0 / size_of::<f32>() as u64 * self.machine.device.element_bytes);
        Ok(CollectiveTime { link: self.machine.collective(kind, bytes, reach)?, host: Nanoseconds::ZERO })
    }

    fn named_collective(
        &self,
        collective: CollectiveId,
        kind: CollectiveKind,
        bytes: Bytes,
        reach: Reach,
    ) -> Result<CollectiveTime, Error> {
        match collective {
            CollectiveId::Gradients(_) => {
                Ok(CollectiveTime { link: self.gradients(reach.ranks)?, host: Nanoseconds::ZERO })
            }
            // The embedding is before the first attention.
            CollectiveId::Reshard { block: BlockId::Attn(0), .. }
            | CollectiveId::Table
            | CollectiveId::Norm => Ok(CollectiveTime::default()),
            CollectiveId::Transfer { .. } => self.collective(kind, bytes, reach),
            CollectiveId::Block { block, .. }
            | CollectiveId::Reshard { block, .. }
            | CollectiveId::Replicas(block)
            | CollectiveId::Weights(block) => match block {
                BlockId::Attn(_) | BlockId::Mlp(_) => self.collective(kind, bytes, reach),
                BlockId::Embed | BlockId::Head => Ok(CollectiveTime::default()),
            },
        }
    }

    fn interference(&self) -> f64 {
        self.machine.device.interference
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::machine::{Device, Dtype, LinkLevel};
    use crate::{Timeline, simulate};
    use oases_schedule::{
        Cut, Layout, PartId, Pass, Purpose, Request, Schedule, Statics, Variant, Workspace, plan,
    };

    const TABLE: &str = include_str!("../../../../data/oases-paper/oases_3090_profile.csv");

    fn machine() -> Machine {
        let device = Device {
            name: "GeForce RTX 3090".to_owned(),
            memory_gb: 24.0,
            peak_tflops: 35.6,
            dtype: Dtype::F32,
            element_bytes: 4,
            bandwidth_gb_s: 936.0,
            launch_us: 6.2,
            efficiency: vec![[1.0, 1.0]],
            score_passes: [0.0; 2],
            unfused: [1.0; 2],
            interference: 1.5,
            estimates: Vec::new(),
            estimate: false,
        };
        let link = LinkLevel {
            name: "link".to_owned(),
            ranks: 8,
            bandwidth_gb_s: 10.0,
            port_gb_s: None,
            latency_us: 0.0,
            estimates: Vec::new(),
            estimate: false,
        };
        Machine { name: "Test".to_owned(), device, links: vec![link] }
    }

    fn model(hidden: usize) -> Model {
        Model::gpt(2, hidden, hidden / 64, 1024, 256)
    }

    #[test]
    fn whole_blocks_take_what_the_table_has() {
        let (table, machine, model) = (PublishedTable::parse(TABLE).unwrap(), machine(), model(2048));
        let costs = PublishedCosts::new(Some(&table), &machine, &model, None).unwrap();
        let of = |operation, batch| costs.compute(operation, batch, 4).map(Nanoseconds::milliseconds);
        // The row 2048,4,8 of the table; 12 sequences are half way between 8 and 16.
        for (operation, batch, ms) in [
            (Operation::Forward(Family::Attn, Extent::Output), 8, 6.328),
            (Operation::Recompute(Family::Attn, Extent::Saved), 8, 6.328),
            (Operation::Recompute(Family::Mlp, Extent::Output), 8, 5.280),
            (Operation::Backward(Family::Attn, Scope::All), 8, 10.055),
            (Operation::Backward(Family::Mlp, Scope::All), 8, 9.934),
            (Operation::Forward(Family::Mlp, Extent::Output), 12, (5.280 + 9.857) / 2.0),
            (Operation::Forward(Family::Embed, Extent::Output), 8, 0.0),
            (Operation::Backward(Family::Head, Scope::All), 8, 0.0),
            (Operation::Loss, 8, 0.0),
            (Operation::Norm, 0, 0.0),
        ] {
            let found = of(operation, batch).unwrap();
            assert!((found - ms).abs() < 1e-6, "{operation}: {found} instead of {ms}");
        }
        // 16 passes of 4 bytes over 12 · 2048² · 2 / 4 weights at 795.6 GB/s.
        let step = of(Operation::Step, 0).unwrap();
        assert!((step - 64.0 * 25_165_824.0 / 795.6e6).abs() < 1e-6, "{step}");
        assert_eq!(
            of(Operation::Forward(Family::Attn, Extent::Output), 32).unwrap_err().to_string(),
            "a layer of hidden size 2048 at TMP degree 4, batch 32 was not measured; the table has -1 for it: out of memory \
             or not divisible"
        );
        assert_eq!(costs.interference(), 1.5);
    }

    /// With one piece nothing is lost by cutting, so the parts are the whole, measured or fitted.
    #[test]
    fn parts_sum_up_to_the_whole() {
        let (table, machine) = (PublishedTable::parse(TABLE).unwrap(), machine());
        for hidden in [2048, 8192] {
            let model = model(hidden);
            let costs = PublishedCosts::new(Some(&table), &machine, &model, None).unwrap();
            let of = |operation| costs.layer_operation_ms(operation, 4, 4).unwrap();
            for family in [Family::Attn, Family::Mlp] {
                let whole = of(Operation::Forward(family, Extent::Output));
                let tail = |direction, of| Operation::Tail(direction, family, of, Cut::Rows);
                let parts = of(Operation::Forward(family, Extent::Body)) + of(tail(Direction::Forward, 1));
                assert!((parts - whole).abs() < 1e-9, "{parts} {whole}");
                let backward = of(Operation::Backward(family, Scope::All));
                let parts = of(Operation::Backward(family, Scope::Body)) + of(tail(Direction::Backward, 1));
                assert!((parts - backward).abs() < 1e-9, "{parts} {backward}");
                let [input, weight] =
                    [Scope::Input, Scope::Weight].map(|scope| of(Operation::Backward(family, scope)));
                assert!((input + weight - backward).abs() < 1e-9 && weight > 0.0 && input > 0.0);
                // Smaller products are less efficient.
                assert!(4.0 * of(tail(Direction::Forward, 4)) >= of(tail(Direction::Forward, 1)));
            }
            let core = of(Operation::Recompute(Family::Attn, Extent::Core));
            assert!(core > 0.0 && core < of(Operation::Forward(Family::Attn, Extent::Body)));
        }
    }

    #[test]
    fn only_layers_and_gradients_communicate() {
        let (machine, model) = (machine(), model(1024));
        let ring = Ring { bandwidth_bytes_per_s: 1e9, latency_s: 0.0 };
        let gradients = Some(GradientRing { replicas: 4, ring });
        let costs = PublishedCosts::new(None, &machine, &model, gradients).unwrap();
        let time = |collective| {
            let (kind, bytes) = (CollectiveKind::AllReduce, Bytes(10_000_000));
            costs.named_collective(collective, kind, bytes, Reach::neighbours(2)).unwrap().link.0
        };
        let of =
            |block| CollectiveId::Block { pass: Pass::Forward, block, part: PartId::whole(0), piece: None };
        assert_eq!(time(of(BlockId::Attn(0))), 1_000_000);
        assert_eq!(time(of(BlockId::Mlp(1))), 1_000_000);
        assert_eq!([of(BlockId::Embed), of(BlockId::Head), CollectiveId::Norm].map(time), [0; 3]);
        // 12 · 1024² · 2 / 2 weights of 4 bytes, 2 · 3/4 of them at 1 GB/s.
        assert_eq!(time(CollectiveId::Gradients(0)), 75_497_472);
    }

    fn of_schedule(
        model: &Model,
        layout: &str,
        sequences: u32,
        costs: &dyn Costs,
    ) -> Result<Timeline, Error> {
        let layout = Layout::parse(layout, Schedule::blocks(model.layers)).unwrap();
        let request = Request { layout, sub_batches: 1, ..Request::new(model.layers, 1, sequences) };
        let schedule = Variant::find("none").unwrap().build(&request);
        let statics = Statics::new(model, &schedule.layout, Purpose::Training, sequences, 1);
        simulate(&schedule, &plan(&schedule, &statics, Workspace::default()), costs)
    }

    /// Nothing overlaps, so the step is a sum. 8 sequences in a group of 8, over servers of 4 with 10 GB/s inside and a port of
    /// 1 GB/s: the first layer at degree 4 (row `1024,4,4`), the second at degree 8 (row `1024,8,8`).
    #[test]
    fn a_step_of_two_degrees_is_a_sum() {
        let (table, mut machine, model) = (PublishedTable::parse(TABLE).unwrap(), machine(), model(1024));
        let network = LinkLevel { bandwidth_gb_s: 1.0, ..machine.links[0].clone() };
        machine.links[0].ranks = 4;
        machine.links.push(network);
        let costs = PublishedCosts::new(Some(&table), &machine, &model, None).unwrap();
        let blocks = (1.536 + 2.246 + 0.987 + 1.647) + (1.789 + 2.549 + 1.216 + 1.887);
        // The residual stream of 8 sequences, in MB. Reshards before attn.0 and attn.1, each forward and backward: two come
        // from 8 sequences on a rank and two from 4.
        let x = 8.0 * 1024.0 * 1024.0 * 4.0 / 1e6;
        let reshards = 2.0 * 2.0 * (x + x / 2.0) / 795.6 + 4.0 * 0.0062;
        // Four all-reduces of a share of 4 sequences in a server, four of 8 sequences across both.
        let all_reduces = 4.0 * (2.0 * 3.0 / 4.0 * x / 2.0 / 10.0) + 4.0 * (2.0 * 7.0 / 8.0 * x / 1.0);
        // Pairs that are 4 apart have a quarter of the port. The input of attn.1, for which every rank has half; no gather of
        // the embedding's gradient. The gradients of the first layer: 12h² + 7h in quarters, and two biases of h.
        let h = 1024.0_f64;
        let replicated = 4.0 * ((12.0 * h * h + 7.0 * h) / 4.0 + 2.0 * h) / 1e6;
        let pairs = (x / 2.0 + replicated) / 0.25;
        // 256 tokens and 1024 positions; a block has its normalisation and a bias whole on a rank, the head its normalisation.
        let layer = |t: f64| (12.0 * h * h + 7.0 * h) / t + 6.0 * h;
        let ends = |t: f64| 256.0 * h / t + 1024.0 * h + 2.0 * h;
        let all = |t: f64| 2.0 * layer(t) + ends(t);
        let adam = |t: f64| 64.0 * 12.0 * h * h * 2.0 / t / 795.6e6;
        let step = layer(4.0) / all(4.0) * adam(4.0) + (layer(8.0) + ends(8.0)) / all(8.0) * adam(8.0);
        let expected = blocks + reshards + all_reduces + pairs + step;
        let found = of_schedule(&model, "8*1 4*2 8*3", 8, &costs).unwrap().step.milliseconds();
        assert!((found / expected - 1.0).abs() < 1e-6, "{found} instead of {expected}");
    }

    #[test]
    fn a_share_that_was_not_measured_is_refused() {
        let (table, machine, model) = (PublishedTable::parse(TABLE).unwrap(), machine(), model(2048));
        let costs = PublishedCosts::new(Some(&table), &machine, &model, None).unwrap();
        // A replica of degree 1 in a group of 8 gets 8 of 64 sequences.
        let error = of_schedule(&model, "8*1 1*1 8*4", 64, &costs).unwrap_err().to_string();
        let missing = "a layer of hidden size 2048 at TMP degree 1, batch 8 was not measured; the table has -1 for it: out of \
                       memory or not divisible";
        assert_eq!(error, missing);
    }

    #[test]
    fn borders_and_replicas_of_layers_communicate_and_those_of_the_ends_do_not() {
        let (machine, model) = (machine(), model(1024));
        let costs = PublishedCosts::new(None, &machine, &model, None).unwrap();
        let time = |collective| {
            let reach = Reach::apart(2, 4);
            let (kind, bytes) = (CollectiveKind::AllGather, Bytes(10_000_000));
            costs.named_collective(collective, kind, bytes, reach).unwrap().link.0
        };
        let border = |block| CollectiveId::Reshard { pass: Pass::Backward, block, part: PartId::whole(0) };
        let layers = [BlockId::Mlp(0), BlockId::Attn(1)];
        assert_eq!(layers.map(|block| time(border(block))), [500_000; 2]);
        assert_eq!(layers.map(|block| time(CollectiveId::Replicas(block))), [500_000; 2]);
        assert_eq!(time(CollectiveId::Replicas(BlockId::Attn(0))), 500_000);
        assert_eq!([BlockId::Attn(0), BlockId::Head].map(|block| time(border(block))), [0; 2]);
        assert_eq!(time(CollectiveId::Replicas(BlockId::Embed)), 0);
    }

    #[test]
    fn models_of_other_proportions_are_refused() {
        let (machine, model) = (machine(), Model { sequence: 512, ..model(1024) });
        let error = PublishedCosts::new(None, &machine, &model, None).unwrap_err();
        assert_eq!(error.to_string(), "the profile is of another model: sequence 1024 instead of 512");
    }
}
