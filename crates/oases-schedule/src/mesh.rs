//! How ranks are arranged: the mesh of parallel axes, and the TMP degree of every block.

/// An axis of the mesh. `axis` is always the mesh; a tensor has dimensions.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Axis {
    /// Replicas of the model that read different samples.
    Data,
    /// Consecutive stages of the chain.
    Pipeline,
    /// Shards of each block (tensor model parallelism, TMP).
    Tensor,
}

impl Axis {
    /// The spelling in the text form, after `@`.
    pub fn name(self) -> &'static str {
        match self {
            Axis::Data => "data",
            Axis::Pipeline => "pipeline",
            Axis::Tensor => "tensor",
        }
    }
}

/// The extents of the three axes. This is the one place that multiplies degrees.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Mesh {
    /// Data-parallel replicas.
    pub data: u32,
    /// Pipeline stages.
    pub pipeline: u32,
    /// Ranks of a TMP group.
    pub tensor: u32,
}

/// Where one world rank stands on each axis.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Coordinates {
    /// Index on the data axis.
    pub data_rank: u32,
    /// Index on the pipeline axis.
    pub pipeline_rank: u32,
    /// Index on the tensor axis.
    pub tp_rank: u32,
}

impl Mesh {
    /// A mesh with one TMP group only.
    pub fn tensor(degree: u32) -> Mesh {
        Mesh { data: 1, pipeline: 1, tensor: degree }
    }

    /// Number of ranks.
    pub fn world_size(self) -> u32 {
        self.data * self.pipeline * self.tensor
    }

    /// Ranks of a TMP group are neighbours, so that the axis with the most traffic stays inside a host.
    pub fn coordinates(self, world_rank: u32) -> Coordinates {
        assert!(world_rank < self.world_size(), "world rank {world_rank} outside of {self:?}");
        Coordinates {
            tp_rank: world_rank % self.tensor,
            pipeline_rank: world_rank / self.tensor % self.pipeline,
            data_rank: world_rank / self.tensor / self.pipeline,
        }
    }

    /// The inverse of [`Mesh::coordinates`].
    pub fn world_rank(self, at: Coordinates) -> u32 {
        (at.data_rank * self.pipeline + at.pipeline_rank) * self.tensor + at.tp_rank
    }
}

/// The TMP degree of every block of the chain.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Layout {
    degrees: Vec<u32>,
}

impl Layout {
    /// The same degree for all `blocks` blocks.
    pub fn uniform(degree: u32, blocks: usize) -> Layout {
        assert!(degree > 0 && blocks > 0, "a layout has at least one block, of degree at least 1");
        Layout { degrees: vec![degree; blocks] }
    }

    /// One degree per block of the chain.
    pub fn mixed(degrees: Vec<u32>) -> Layout {
        assert!(!degrees.is_empty() && !degrees.contains(&0), "a layout has blocks, of degree at least 1");
        Layout { degrees }
    }

    /// Degree of the block at `position` in the chain.
    pub fn degree(&self, position: usize) -> u32 {
        self.degrees[position]
    }

    /// The one degree of all blocks, or `None` for a mixed layout.
    pub fn uniform_degree(&self) -> Option<u32> {
        let first = self.degrees[0];
        self.degrees.iter().all(|&degree| degree == first).then_some(first)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_world_rank_has_its_own_coordinates() {
        let mesh = Mesh { data: 2, pipeline: 3, tensor: 4 };
        assert_eq!(mesh.world_size(), 24);
        for world_rank in 0..24 {
            assert_eq!(mesh.world_rank(mesh.coordinates(world_rank)), world_rank);
        }
        let neighbours: Vec<u32> = (4..8).map(|rank| mesh.coordinates(rank).tp_rank).collect();
        assert_eq!(neighbours, [0, 1, 2, 3]);
        assert_eq!(mesh.coordinates(4).pipeline_rank, 1);
    }
}
