//! What each compute instruction does on one rank: its matrix products, and what its other operators read and write.
//!
//! Sizes come from the slots of the block ([`Model::slot_bytes`]); the tables below say how often an operator reads or
//! writes each slot. Vectors (gains, biases, statistics of rows) and the weights that products read are not counted: the
//! efficiency of a product is measured with its operands in memory.
//!
//! An operation is counted without its place in the chain. So a forward completes its input here even behind a border between
//! TMP degrees or stages, where that has been done before, and a reshard copies all rows, of which a falling degree needs some:
//! both err upwards, by at most three and two passes over a block's input. The step of a pipeline stage passes over the stage's
//! share of the parameters ([`oases_schedule::Plan::parameter_shares`]).

use oases_schedule::{
    Biases, Direction, Extent, Family, HeadKind, Model, NormPlacement, Operation, Positions, Products, Scope,
    Slot, Workspace,
};

/// The work of one instruction on one rank.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Work {
    /// Whether it is that of a backward.
    pub backward: bool,
    /// Floating-point operations of each matrix product with a weight.
    pub products: Vec<u64>,
    /// Elements of activations that the other operators read or write.
    pub elements: u64,
    /// The attention core, if the instruction has one.
    pub core: Option<Core>,
    /// Bytes of parameters, gradients and moments that are read or written, always in 32 bits.
    pub state_bytes: u64,
    /// Number of operators, products included.
    pub operators: u64,
}

/// Attention between queries, keys and values: the scores, and the values weighted with them. The two count as one
/// product.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Core {
    /// Number of products: forward has one, backward two.
    pub products: u64,
    /// Floating-point operations of one product over the keys that a query sees.
    pub flops: u64,
    /// The same over all keys, seen or masked.
    pub unmasked_flops: u64,
    /// Scores: one number for each query, key and head of the rank, masked ones included.
    pub scores: u64,
}

/// An operator that is no product: how often it reads or writes each slot.
type Operator = &'static [(Slot, u64)];

/// Residual plus reduced output, in place of the output.
const JOIN: Operator = &[(Slot::Input, 2), (Slot::Residual, 1)];
/// The residual, normalised on its way into a join.
const RESIDUAL_NORM: Operator = &[(Slot::Residual, 1), (Slot::Normalized, 1)];
/// Queries and keys in place; values are not touched, but counted.
const ROTATE: Operator = &[(Slot::Qkv, 2)];
const HEAD_NORM: Operator = &[(Slot::Qkv, 1), (Slot::NormalizedHeads, 1)];
/// The head's transform behind its product: the non-linearity and a normalisation.
const TRANSFORM: Operator = &[(Slot::TransformInput, 1), (Slot::Transformed, 2), (Slot::LogitsOperand, 1)];
const TRANSFORM_BACKWARD: Operator =
    &[(Slot::Transformed, 1), (Slot::TransformInput, 2), (Slot::TransformGradient, 4)];
const NORM: Operator = &[(Slot::Input, 1), (Slot::Normalized, 1)];
const ATTENTION: Operator = &[(Slot::Qkv, 1), (Slot::Context, 1)];
const GELU: Operator = &[(Slot::PreActivation, 1), (Slot::Activated, 1)];
/// Rows of the token table, and the output.
const EMBED: Operator = &[(Slot::Output, 2)];
/// Maximum, sum of exponentials and target of each row of logits.
const STATISTICS: Operator = &[(Slot::Logits, 1)];
const CROSS_ENTROPY: Operator = &[(Slot::Output, 1)];

/// Rows for the other TMP degree, behind a completed input or gradient.
const COPY: Operator = &[(Slot::Resharded, 2)];

/// Upstream plus reduced gradient, in place of the gradient.
const GRADIENT_JOIN: Operator = &[(Slot::Gradient, 2), (Slot::Upstream, 1)];
/// Adds the upstream gradient in place; behind dropout there is a second output.
const JOIN_BACKWARD: Operator = &[(Slot::Gradient, 2), (Slot::Upstream, 1), (Slot::BranchGradient, 1)];
const OUT_BIAS_BACKWARD: Operator = &[(Slot::Gradient, 1)];
const ATTENTION_BACKWARD: Operator =
    &[(Slot::Qkv, 1), (Slot::Context, 1), (Slot::ContextGradient, 1), (Slot::QkvGradient, 1)];
const QKV_BIAS_BACKWARD: Operator = &[(Slot::QkvGradient, 1)];
/// The pre-activation becomes the activation again, and the gradient goes through the non-linearity, both in place.
const GELU_BACKWARD: Operator = &[(Slot::PreActivation, 2), (Slot::ActivationGradient, 2)];
const FFN_BIAS_BACKWARD: Operator = &[(Slot::ActivationGradient, 1)];
const NORM_BACKWARD: Operator = &[(Slot::Input, 1), (Slot::InputGradient, 2)];
/// From the logits to their gradient, in place.
const CROSS_ENTROPY_BACKWARD: Operator = &[(Slot::Logits, 2)];
const POSITIONS_BACKWARD: Operator = &[(Slot::Gradient, 1)];
/// The gradient, and the rows of the table's gradient that it is added to.
const EMBED_BACKWARD: Operator = &[(Slot::Gradient, 3)];

/// The work of `operation` on `sequences` sequences, on one rank of a TMP group of `tensor`.
pub fn work(model: &Model, operation: Operation, sequences: u32, tensor: u32) -> Work {
    let count = Count::new(model, operation, sequences, tensor);
    match operation {
        Operation::Forward(_, extent) => count.join().forward(extent),
        // Inputs of recomputed blocks are kept and complete, but for an MLP's in a layer that is recomputed as a whole.
        Operation::Recompute(Family::Mlp, extent @ (Extent::Body | Extent::Output)) => {
            count.join().forward(extent)
        }
        Operation::Recompute(_, extent) => count.forward(extent),
        Operation::Tail(Direction::Forward, _, of, _) => count.piece(of, |products| products.last),
        Operation::Tail(Direction::Backward, _, of, _) => {
            // The normalisation of these rows follows.
            let count = count.in_backward().piece(of, |products| products.first).operator(NORM_BACKWARD);
            let rest = count.elements_of(Slot::Input) * 3 * (u64::from(of) - 1) / u64::from(of);
            count.without(rest)
        }
        Operation::Reshard(Direction::Forward) => count.join().operator(COPY),
        Operation::Reshard(Direction::Backward) => count.in_backward().operator(GRADIENT_JOIN).operator(COPY),
        Operation::Complete(Direction::Forward) => count.join(),
        Operation::Complete(Direction::Backward) => count.in_backward().operator(GRADIENT_JOIN),
        Operation::Loss => count.operator(CROSS_ENTROPY),
        Operation::Backward(_, scope) => count.backward(scope),
        // The square of each gradient.
        Operation::Norm => count.state(1, false),
        // AdamW reads weight, gradient and two moments and writes all but the gradient.
        Operation::Step => count.state(7, true),
    }
    .work
}

/// Collects the work of one instruction.
struct Count<'a> {
    model: &'a Model,
    operation: Operation,
    family: Family,
    products: Products,
    tokens: usize,
    tensor: u32,
    work: Work,
}

impl Count<'_> {
    fn new(model: &Model, operation: Operation, sequences: u32, tensor: u32) -> Count<'_> {
        let tokens = sequences as usize * model.sequence;
        let family = operation.family().unwrap_or(Family::Head);
        let products = model.products(family, tokens, tensor);
        Count { model, operation, family, products, tokens, tensor, work: Work::default() }
    }

    /// Completes an input.
    fn join(self) -> Self {
        let post = self.model.placement == NormPlacement::Post;
        self.operator(JOIN).only(post, RESIDUAL_NORM)
    }

    /// From the operand of the attention core to its output: with what rotates and normalises heads where these come fresh.
    fn attention(self, fresh: bool) -> Self {
        let rotary = matches!(self.model.positions, Positions::Rotary(_));
        let normalised = self.model.head_norm;
        let count = self.only(normalised, HEAD_NORM).only(rotary && (fresh || normalised), ROTATE);
        count.core(1).operator(ATTENTION)
    }

    /// A forward or recomputation, behind the completion of its input.
    fn forward(self, extent: Extent) -> Self {
        let Products { first, last, .. } = self.products;
        let out = |count: Self| if extent == Extent::Output { count.product(1, last) } else { count };
        match self.family {
            // It has no input to complete.
            Family::Embed => Count { work: Work::default(), ..self }.operator(EMBED),
            Family::Attn if extent == Extent::Core => self.attention(false),
            Family::Attn => out(self.operator(NORM).product(1, first).attention(true)),
            Family::Mlp if extent == Extent::Saved => self.operator(NORM).product(1, first),
            Family::Mlp => out(self.operator(NORM).product(1, first).operator(GELU)),
            Family::Head => {
                let transform = self.model.head == HeadKind::Transform;
                self.operator(NORM).only(transform, TRANSFORM).product(1, first).operator(STATISTICS)
            }
        }
    }

    /// Each product has two in backward, one for the gradient of each operand.
    fn backward(self, scope: Scope) -> Self {
        let mut count = self.in_backward();
        if count.family == Family::Embed {
            return count.operator(JOIN_BACKWARD).operator(POSITIONS_BACKWARD).operator(EMBED_BACKWARD);
        }
        if scope != Scope::Weight {
            count = count.inner_gradients();
        }
        if scope != Scope::Input {
            count = count.weight_gradients();
        }
        if matches!(scope, Scope::All | Scope::Input) {
            let first = count.products.first;
            let transform = count.family == Family::Head && count.model.head == HeadKind::Transform;
            count = count.product(1, first).only(transform, TRANSFORM_BACKWARD).operator(NORM_BACKWARD);
        }
        count
    }

    fn in_backward(mut self) -> Self {
        self.work.backward = true;
        self
    }

    /// From the gradient of the output to that of the column-parallel product.
    fn inner_gradients(self) -> Self {
        let last = self.products.last;
        match self.family {
            Family::Attn => {
                let rotary = matches!(self.model.positions, Positions::Rotary(_));
                let normalised = self.model.head_norm;
                let count = self.operator(JOIN_BACKWARD).product(1, last);
                let count = count.only(normalised, HEAD_NORM).only(normalised, HEAD_NORM);
                count.only(rotary, ROTATE).core(2).operator(ATTENTION_BACKWARD)
            }
            Family::Mlp => self.operator(JOIN_BACKWARD).product(1, last).operator(GELU_BACKWARD),
            Family::Embed | Family::Head => self.operator(CROSS_ENTROPY_BACKWARD),
        }
    }

    fn weight_gradients(self) -> Self {
        let Products { first, last, .. } = self.products;
        match self.family {
            Family::Attn => {
                let count = self.product(1, last).bias(OUT_BIAS_BACKWARD, &[Biases::All]).product(1, first);
                count.bias(QKV_BIAS_BACKWARD, &[Biases::All, Biases::Qkv])
            }
            Family::Mlp => {
                let count = self.product(1, last).bias(OUT_BIAS_BACKWARD, &[Biases::All]).product(1, first);
                count.bias(FFN_BIAS_BACKWARD, &[Biases::All])
            }
            Family::Embed | Family::Head => self.product(1, first),
        }
    }

    /// Adds `copies` products of so many floating-point operations.
    fn product(mut self, copies: u64, flops: u64) -> Self {
        self.work.products.extend((0..copies).map(|_| flops));
        self.work.operators += copies;
        self
    }

    /// One of `of` pieces of a product.
    fn piece(self, of: u8, product: impl Fn(Products) -> u64) -> Self {
        let flops = product(self.products) / u64::from(of);
        self.product(1, flops)
    }

    fn without(mut self, elements: u64) -> Self {
        self.work.elements -= elements;
        self
    }

    /// The attention core; the operator beside it is the same kernel.
    fn core(mut self, products: u64) -> Self {
        let [heads, sequence] = [self.model.heads / self.tensor as usize, self.model.sequence];
        let scores = (self.tokens * heads * sequence) as u64;
        // Scores and weighted values are a multiply-add each for every score and feature of a head.
        let unmasked_flops = scores * 4 * self.model.head_dim as u64;
        self.work.core = Some(Core { products, flops: self.products.core, unmasked_flops, scores });
        self
    }

    /// An operator on a bias that projections of these kinds have.
    fn bias(self, operator: Operator, of: &[Biases]) -> Self {
        let has = of.contains(&self.model.biases);
        self.only(has, operator)
    }

    fn only(self, condition: bool, operator: Operator) -> Self {
        if condition { self.operator(operator) } else { self }
    }

    fn operator(mut self, operator: Operator) -> Self {
        for (slot, times) in operator {
            self.work.elements += times * self.elements_of(*slot);
        }
        self.work.operators += 1;
        self
    }

    fn elements_of(&self, slot: Slot) -> u64 {
        let bytes =
            self.model.slot_bytes(self.operation, slot, self.tokens, self.tensor, Workspace::default());
        bytes.0 / size_of::<f32>() as u64
    }

    /// Passes over the rank's parameters, or what belongs to them; in one operator each, or in one for all.
    fn state(mut self, passes: u64, each: bool) -> Self {
        let parameters = self.model.parameters();
        let elements: u64 = parameters.iter().map(|one| one.local_elements(self.tensor) as u64).sum();
        self.work.state_bytes = passes * elements * size_of::<f32>() as u64;
        self.work.operators += if each { parameters.len() as u64 } else { 1 };
        self
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use oases_schedule::Cut;

    fn operations() -> Vec<Operation> {
        let mut operations = vec![Operation::Forward(Family::Embed, Extent::Output)];
        for family in [Family::Attn, Family::Mlp] {
            let extents = [Extent::Saved, Extent::Body, Extent::Output];
            operations.extend(extents.map(|extent| Operation::Recompute(family, extent)));
            operations
                .extend([Extent::Body, Extent::Output].map(|extent| Operation::Forward(family, extent)));
            operations.push(Operation::Tail(Direction::Forward, family, 4, Cut::Columns));
        }
        for family in [Family::Attn, Family::Mlp, Family::Head] {
            operations.extend(Scope::ALL.map(|scope| Operation::Backward(family, scope)));
            operations.push(Operation::Tail(Direction::Backward, family, 4, Cut::Rows));
        }
        operations.extend([
            Operation::Recompute(Family::Attn, Extent::Core),
            Operation::Forward(Family::Head, Extent::Output),
            Operation::Reshard(Direction::Forward),
            Operation::Reshard(Direction::Backward),
        ]);
        operations
    }

    #[test]
    fn products_are_those_of_the_model() {
        let shared = Model { kv_heads: 4, ..Model::gpt(2, 64, 8, 32, 512) };
        for model in [Model::gpt(2, 64, 8, 32, 512), shared] {
            for tensor in [1, 2, 4] {
                for operation in operations() {
                    let work = work(&model, operation, 3, tensor);
                    let core = work.core.map_or(0, |core| core.products * core.flops);
                    let sum = work.products.iter().sum::<u64>() + core;
                    let expected = model.flops(operation, 3 * model.sequence, tensor).0;
                    assert_eq!(sum, expected, "{operation} at degree {tensor}");
                }
            }
        }
    }

    #[test]
    fn cutting_a_backward_changes_no_traffic() {
        let model = Model::gpt(2, 64, 8, 32, 512);
        let of = |operation| work(&model, operation, 2, 2).elements;
        for family in [Family::Attn, Family::Mlp, Family::Head] {
            let whole = of(Operation::Backward(family, Scope::All));
            let halves = [Scope::Input, Scope::Weight].map(|scope| of(Operation::Backward(family, scope)));
            assert_eq!(halves.iter().sum::<u64>(), whole);
            let tail = of(Operation::Tail(Direction::Backward, family, 4, Cut::Rows));
            assert_eq!(of(Operation::Backward(family, Scope::Body)) + 4 * tail, whole);
        }
    }

    #[test]
    fn traffic_counted_by_hand() {
        // n = 2 · 32 tokens, h = 64, f = 256, V = 512, two ranks, no dropout.
        let (model, n) = (Model::gpt(2, 64, 8, 32, 512), 64);
        let (x, qkv, context, ffn, logits) = (n * 64, n * 3 * 32, n * 32, n * 128, n * 256);
        let of = |operation| work(&model, operation, 2, 2);
        // Join 3, norm 2; the core reads qkv and writes the context. Join, norm, qkv, core, out.
        let forward = of(Operation::Forward(Family::Attn, Extent::Output));
        assert_eq!((forward.elements, forward.operators), (5 * x + qkv + context, 5));
        // Scores and weighted values are 2 operations each for a score and each of the 8 features of a head.
        let scores = n * 4 * 32;
        let (flops, unmasked_flops) = (scores / 32 * 33 / 2 * 4 * 8, scores * 4 * 8);
        assert_eq!(forward.core, Some(Core { products: 1, flops, unmasked_flops, scores }));
        // Gradient read, written, upstream read; bias reads the gradient; norm backward 3.
        let backward = of(Operation::Backward(Family::Attn, Scope::All));
        assert_eq!(backward.elements, 7 * x + 3 * qkv + 2 * context);
        assert_eq!(backward.operators, 9);
        assert_eq!(backward.core, Some(Core { products: 2, flops, unmasked_flops, scores }));
        assert_eq!(of(Operation::Forward(Family::Mlp, Extent::Output)).elements, 5 * x + 2 * ffn);
        assert_eq!(of(Operation::Recompute(Family::Mlp, Extent::Saved)).elements, 2 * x);
        assert_eq!(of(Operation::Backward(Family::Mlp, Scope::All)).elements, 7 * x + 5 * ffn);
        assert_eq!(of(Operation::Forward(Family::Head, Extent::Output)).elements, 5 * x + logits);
        assert_eq!(of(Operation::Backward(Family::Head, Scope::All)).elements, 3 * x + 2 * logits);
        assert_eq!(of(Operation::Loss).elements, 2 * n * 3);
        // Join 3 and copy 2, in both directions, whatever the degree; each is an operator.
        for direction in [Direction::Forward, Direction::Backward] {
            let reshard = of(Operation::Reshard(direction));
            assert_eq!((reshard.elements, reshard.operators), (5 * x, 2));
            assert_eq!(reshard.backward, direction == Direction::Backward);
            assert_eq!(work(&model, Operation::Reshard(direction), 2, 1), reshard);
            let complete = of(Operation::Complete(direction));
            assert_eq!((complete.elements, complete.operators, complete.products.len()), (3 * x, 1, 0));
        }
        // A second gradient behind dropout.
        let dropout = Model { dropout: 0.1, ..model };
        assert_eq!(
            work(&dropout, Operation::Backward(Family::Mlp, Scope::All), 2, 2).elements,
            8 * x + 5 * ffn
        );
    }

    #[test]
    fn the_step_passes_over_the_parameters_of_the_rank() {
        // Per layer 12h² + 13h weights, of which the matrices and the column-parallel biases (3h + 4h) are cut.
        let (model, h) = (Model::gpt(2, 64, 8, 32, 512), 64);
        let whole = 2 * (13 * h - 7 * h) + 2 * h + 32 * h;
        let cut = 2 * (12 * h * h + 7 * h) + 512 * h;
        let local = whole + cut / 2;
        let step = work(&model, Operation::Step, 0, 2);
        assert_eq!((step.state_bytes, step.elements), (7 * 4 * local, 0));
        assert_eq!(work(&model, Operation::Norm, 0, 2).state_bytes, 4 * local);
    }
}
