//! Typed indices: an op cannot be mistaken for a tensor or a device.
//!
//! Each wraps a `u32`, so a graph holds at most 2^32 - 1 of each kind; half the memory traffic of
//! `usize` is worth that limit (the largest traced graphs have 10^5 ops).

macro_rules! id {
    ($(#[$doc:meta])* $name:ident) => {
        $(#[$doc])*
        #[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Default)]
        #[repr(transparent)]
        pub struct $name(pub u32);

        impl $name {
            /// Stands for "none"; never a valid index.
            pub const NONE: Self = Self(u32::MAX);

            /// From a position. The caller has checked that it fits.
            #[inline(always)]
            pub fn new(index: usize) -> Self {
                debug_assert!(index < u32::MAX as usize);
                Self(index as u32)
            }

            /// As a position in a slice.
            #[inline(always)]
            pub fn ix(self) -> usize {
                self.0 as usize
            }

            /// Whether this is [`Self::NONE`].
            #[inline(always)]
            pub fn is_none(self) -> bool {
                self.0 == u32::MAX
            }
        }
    };
}

id!(
    /// An op of a graph.
    OpId
);
id!(
    /// A tensor, in the graph's own numbering: grouped by producing op.
    TensorId
);
id!(
    /// A piece of memory that one op allocates and several tensors may share.
    StorageId
);
id!(
    /// A device of a cluster.
    DeviceId
);
id!(
    /// A channel of a cluster: carries one transfer at a time.
    ChannelId
);
