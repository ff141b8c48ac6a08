//! The few calls of the MPI library that the communication thread makes, on memory that stays valid while they fly.
//!
//! **The argument for soundness.** MPI reads and writes memory behind the compiler's back between the call that starts a
//! message and the look that finds it done. So:
//!
//! 1. A [`Buffer`] owns its memory, a lent [`Region`] or a vector, and reaches it through the one pointer that it took when it
//!    was made. No reference to any of it lives longer than a method of the buffer.
//! 2. The buffer keeps a list of the flights over it. Starting one, and reading or writing elements, is checked against the
//!    list: what MPI writes is touched by nobody else, what it reads is written by nobody.
//! 3. A flight is taken off the list only when a look has found it done, and a buffer gives its memory up only when the list is
//!    empty. Dropped with flights (after a failure), it leaks the memory instead: MPI may still write there.
//! 4. [`Library`] is neither `Send` nor `Sync`, and every call goes through it: MPI is only called on the thread that
//!    initialised it.

#![allow(unsafe_code, reason = "the one home of calls to the MPI library, checked")]

use std::cell::RefCell;
use std::ffi::{c_char, c_int, c_void};
use std::marker::PhantomData;
use std::mem::{ManuallyDrop, MaybeUninit};
use std::ops::Range;
use std::ptr;

use ::mpi::ffi;

use crate::arena::Region;

/// A call that MPI refused: its name, and the library's own words.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{call}: {reason}")]
pub(super) struct MpiError {
    /// The other end of the message, where there is one.
    pub peer: Option<usize>,
    /// The function.
    pub call: &'static str,
    /// Its error text.
    pub reason: String,
}

impl MpiError {
    fn with(self, peer: usize) -> MpiError {
        MpiError { peer: Some(peer), ..self }
    }
}

/// All messages that have been started and not been found done, one a slot.
#[derive(Debug, Default)]
struct UnderWay {
    requests: Vec<ffi::MPI_Request>,
    peers: Vec<usize>,
    done: Vec<bool>,
    free: Vec<usize>,
    /// Room for what [`Library::look`] is told.
    indices: Vec<c_int>,
    statuses: Vec<ffi::MPI_Status>,
}

impl UnderWay {
    fn add(&mut self, request: ffi::MPI_Request, peer: usize) -> Slot {
        let slot = self.free.pop().unwrap_or(self.requests.len());
        if slot == self.requests.len() {
            self.requests.push(request);
            self.peers.push(peer);
            self.done.push(false);
        }
        (self.requests[slot], self.peers[slot], self.done[slot]) = (request, peer, false);
        Slot(slot)
    }
}

/// Where a message stands on the list.
#[derive(Debug)]
struct Slot(usize);

/// The initialised library, with a communicator of our own over all ranks.
#[derive(Debug)]
pub(super) struct Library {
    world: ffi::MPI_Comm,
    pub(super) rank: usize,
    pub(super) ranks: usize,
    under_way: RefCell<UnderWay>,
    /// MPI belongs to the thread that initialised it.
    _not_send: PhantomData<*const ()>,
}

impl Library {
    /// Initialises MPI for calls from this thread only. Errors are returned from here on instead of ending the process.
    pub(super) fn initialize() -> Result<Library, MpiError> {
        let (mut provided, mut rank, mut ranks) = (0, 0, 0);
        // SAFETY: `RSMPI_THREAD_FUNNELED` is a constant of the library. Null arguments are allowed since MPI-2; the results go to
        // variables that live here. Each process does this once, as only `super::join` calls it.
        let world = unsafe {
            let wanted = ffi::RSMPI_THREAD_FUNNELED;
            checked(
                "MPI_Init_thread",
                ffi::MPI_Init_thread(ptr::null_mut(), ptr::null_mut(), wanted, &mut provided),
            )?;
            if provided < wanted {
                let reason = "the library does not allow threads besides the one that calls it".to_owned();
                return Err(MpiError { peer: None, call: "MPI_Init_thread", reason });
            }
            let mut world = MaybeUninit::uninit();
            checked("MPI_Comm_dup", ffi::MPI_Comm_dup(ffi::RSMPI_COMM_WORLD, world.as_mut_ptr()))?;
            let world = world.assume_init();
            for communicator in [world, ffi::RSMPI_COMM_WORLD] {
                let set = ffi::MPI_Comm_set_errhandler(communicator, ffi::RSMPI_ERRORS_RETURN);
                checked("MPI_Comm_set_errhandler", set)?;
            }
            checked("MPI_Comm_rank", ffi::MPI_Comm_rank(world, &mut rank))?;
            checked("MPI_Comm_size", ffi::MPI_Comm_size(world, &mut ranks))?;
            world
        };
        let under_way = RefCell::default();
        Ok(Library { world, rank: rank as usize, ranks: ranks as usize, under_way, _not_send: PhantomData })
    }

    /// Ends MPI, together with all other ranks. Nothing may be in flight.
    pub(super) fn finalize(self) -> Result<(), MpiError> {
        // SAFETY: initialised, on the same thread (rule 4), and `self` is gone afterwards.
        unsafe { checked("MPI_Finalize", ffi::MPI_Finalize()) }
    }

    /// Ends all processes of the job at once, this one too.
    pub(super) fn abort(&self) {
        // SAFETY: initialised, on the same thread.
        unsafe { ffi::MPI_Abort(self.world, 1) };
    }

    /// The sender and the length of the next message under `tag`, if one has come. It is received by [`Letter::receive`].
    pub(super) fn probe(&self, tag: c_int) -> Result<Option<(usize, usize)>, MpiError> {
        let (mut arrived, mut bytes) = (0, 0);
        let mut status = MaybeUninit::<ffi::MPI_Status>::zeroed();
        // SAFETY: results go to variables that live here; the status is read only after MPI has filled it.
        unsafe {
            let any = ffi::RSMPI_ANY_SOURCE;
            checked("MPI_Iprobe", ffi::MPI_Iprobe(any, tag, self.world, &mut arrived, status.as_mut_ptr()))?;
            if arrived == 0 {
                return Ok(None);
            }
            let status = status.assume_init();
            checked("MPI_Get_count", ffi::MPI_Get_count(&status, ffi::RSMPI_UINT8_T, &mut bytes))?;
            Ok(Some((status.MPI_SOURCE as usize, bytes as usize)))
        }
    }

    /// # Safety
    /// `bytes` bytes at `at` are valid for reads, and nobody writes them, until the flight has been found done.
    unsafe fn start_send(
        &self,
        at: *const c_void,
        bytes: usize,
        peer: usize,
        tag: c_int,
    ) -> Result<Slot, MpiError> {
        let mut request = MaybeUninit::uninit();
        // SAFETY: the memory is the caller's promise; the request is read only after MPI has set it.
        unsafe {
            let (bytes, kind) = (length(bytes), ffi::RSMPI_UINT8_T);
            let code = ffi::MPI_Isend(at, bytes, kind, peer as c_int, tag, self.world, request.as_mut_ptr());
            checked("MPI_Isend", code).map_err(|error| error.with(peer))?;
            Ok(self.under_way.borrow_mut().add(request.assume_init(), peer))
        }
    }

    /// # Safety
    /// `bytes` bytes at `at` are valid for writes, and nobody else touches them, until the flight has been found done.
    unsafe fn start_receive(
        &self,
        at: *mut c_void,
        bytes: usize,
        peer: usize,
        tag: c_int,
    ) -> Result<Slot, MpiError> {
        let mut request = MaybeUninit::uninit();
        // SAFETY: as in `start_send`.
        unsafe {
            let (bytes, kind) = (length(bytes), ffi::RSMPI_UINT8_T);
            let code = ffi::MPI_Irecv(at, bytes, kind, peer as c_int, tag, self.world, request.as_mut_ptr());
            checked("MPI_Irecv", code).map_err(|error| error.with(peer))?;
            Ok(self.under_way.borrow_mut().add(request.assume_init(), peer))
        }
    }

    /// Makes the library move what is under way, and looks what is done. One call for all messages: each costs several
    /// system calls, whatever it finds.
    pub(super) fn look(&self) -> Result<(), MpiError> {
        let UnderWay { requests, peers, done, indices, statuses, .. } = &mut *self.under_way.borrow_mut();
        let mut found = 0;
        indices.resize(requests.len(), 0);
        // SAFETY: a status is plain numbers. Every request on the list came from MPI, or is the null request, which is passed over;
        // the two lists that MPI fills are as long as that of the requests.
        let code = unsafe {
            statuses.resize(requests.len(), MaybeUninit::zeroed().assume_init());
            let (all, places) = (requests.as_mut_ptr(), indices.as_mut_ptr());
            ffi::MPI_Testsome(length(requests.len()), all, &mut found, places, statuses.as_mut_ptr())
        };
        // SAFETY: initialised.
        if let Err(error) = unsafe { checked("MPI_Testsome", code) } {
            let failed =
                |(_, status): &(&c_int, &ffi::MPI_Status)| status.MPI_ERROR != ffi::MPI_SUCCESS as c_int;
            let told = indices.iter().zip(&*statuses).take(found.max(0) as usize).find(failed);
            return Err(told.map_or(error.clone(), |(index, _)| error.with(peers[*index as usize])));
        }
        // The count is negative where there was nothing to look at.
        for index in indices.iter().take(found.max(0) as usize) {
            done[*index as usize] = true;
        }
        Ok(())
    }

    fn is_done(&self, slot: &Slot) -> bool {
        self.under_way.borrow().done[slot.0]
    }

    /// Takes a message that is done off the list.
    fn forget(&self, slot: &Slot) {
        self.under_way.borrow_mut().free.push(slot.0);
    }
}

/// A message on its way between a buffer and a peer.
#[derive(Debug)]
pub(super) struct Flight {
    slot: Slot,
    over: Over,
}

/// What a flight does to a part of its buffer.
#[derive(Clone, Debug, PartialEq, Eq)]
struct Over {
    elements: Range<usize>,
    writes: bool,
}

/// Memory that messages may fly over. See the [module](self).
#[derive(Debug)]
pub(super) struct Buffer {
    owner: ManuallyDrop<Owner>,
    base: *mut f32,
    len: usize,
    flights: Vec<Over>,
}

#[derive(Debug)]
enum Owner {
    Lent(Region),
    Scratch(Vec<f32>),
}

impl Buffer {
    /// Over a lent region.
    pub(super) fn lent(mut region: Region) -> Buffer {
        let (base, len) = (region.as_mut_ptr(), region.len());
        Buffer { owner: ManuallyDrop::new(Owner::Lent(region)), base, len, flights: Vec::new() }
    }

    /// Over a vector.
    pub(super) fn scratch(mut values: Vec<f32>) -> Buffer {
        let (base, len) = (values.as_mut_ptr(), values.len());
        Buffer { owner: ManuallyDrop::new(Owner::Scratch(values)), base, len, flights: Vec::new() }
    }

    /// The number of elements.
    pub(super) fn len(&self) -> usize {
        self.len
    }

    /// Starts to send some elements.
    pub(super) fn send(
        &mut self,
        library: &Library,
        elements: Range<usize>,
        peer: usize,
        tag: c_int,
    ) -> Result<Flight, MpiError> {
        let over = Over { elements, writes: false };
        let (at, bytes) = self.claim(&over);
        // SAFETY: `claim` found the elements in bounds and written by nobody; the list keeps them so (rules 1 to 3).
        let slot = unsafe { library.start_send(at.cast(), bytes, peer, tag)? };
        self.flights.push(over.clone());
        Ok(Flight { slot, over })
    }

    /// Starts to receive into some elements.
    pub(super) fn receive(
        &mut self,
        library: &Library,
        elements: Range<usize>,
        peer: usize,
        tag: c_int,
    ) -> Result<Flight, MpiError> {
        let over = Over { elements, writes: true };
        let (at, bytes) = self.claim(&over);
        // SAFETY: `claim` found the elements in bounds and touched by nobody; the list keeps them so (rules 1 to 3).
        let slot = unsafe { library.start_receive(at.cast(), bytes, peer, tag)? };
        self.flights.push(over.clone());
        Ok(Flight { slot, over })
    }

    /// Whether the last look has found a flight over this buffer done; then its elements are free again.
    pub(super) fn landed(&mut self, library: &Library, flight: &Flight) -> bool {
        let done = library.is_done(&flight.slot);
        if done {
            library.forget(&flight.slot);
            let at = self.flights.iter().position(|over| *over == flight.over);
            self.flights.swap_remove(at.expect("a flight is on its buffer's list"));
        }
        done
    }

    /// Some elements, to read.
    pub(super) fn read(&self, elements: Range<usize>) -> &[f32] {
        let (at, _) = self.claim(&Over { elements: elements.clone(), writes: false });
        // SAFETY: in bounds, and written by no flight (`claim`); the result borrows the buffer, so none can start.
        unsafe { std::slice::from_raw_parts(at, elements.len()) }
    }

    /// Some elements, to write.
    pub(super) fn write(&mut self, elements: Range<usize>) -> &mut [f32] {
        let (at, _) = self.claim(&Over { elements: elements.clone(), writes: true });
        // SAFETY: in bounds, and touched by no flight (`claim`); the result borrows the buffer mutably, so nothing else can.
        unsafe { std::slice::from_raw_parts_mut(at, elements.len()) }
    }

    /// Gives the region back.
    ///
    /// # Panics
    /// If something is in flight, or the memory is a vector.
    pub(super) fn into_region(self) -> Region {
        match self.into_owner() {
            Owner::Lent(region) => region,
            Owner::Scratch(_) => panic!("a vector is no region"),
        }
    }

    /// Gives the vector back.
    ///
    /// # Panics
    /// If something is in flight, or the memory is a region.
    pub(super) fn into_scratch(self) -> Vec<f32> {
        match self.into_owner() {
            Owner::Scratch(values) => values,
            Owner::Lent(_) => panic!("a region is no vector"),
        }
    }

    fn into_owner(mut self) -> Owner {
        assert!(self.flights.is_empty(), "a buffer is given up while messages fly over it");
        // SAFETY: taken once: `self` is forgotten right away. Only the emptiness of the list, an empty vector, is lost with it.
        let owner = unsafe { ManuallyDrop::take(&mut self.owner) };
        drop(std::mem::take(&mut self.flights));
        std::mem::forget(self);
        owner
    }

    /// Checks a use of some elements against all flights. Returns their address and size in bytes.
    fn claim(&self, over: &Over) -> (*mut f32, usize) {
        let Range { start, end } = over.elements;
        assert!(start <= end && end <= self.len, "elements {start}..{end} of a buffer of {}", self.len);
        let meets = |other: &Over| start < other.elements.end && other.elements.start < end;
        let clash = self.flights.iter().find(|other| meets(other) && (over.writes || other.writes));
        assert!(clash.is_none(), "{over:?} while {clash:?} flies");
        // SAFETY: `start` is within the allocation of `len` elements.
        (unsafe { self.base.add(start) }, (end - start) * size_of::<f32>())
    }
}

impl Drop for Buffer {
    fn drop(&mut self) {
        if self.flights.is_empty() {
            // SAFETY: dropped once; with flights the memory is leaked (rule 3).
            unsafe { ManuallyDrop::drop(&mut self.owner) };
        }
    }
}

/// A small message of bytes on its way.
#[derive(Debug)]
pub(super) struct Letter {
    /// The other end.
    pub(super) peer: usize,
    bytes: ManuallyDrop<Vec<u8>>,
    slot: Slot,
    done: bool,
}

impl Letter {
    /// Starts to send.
    pub(super) fn send(
        library: &Library,
        bytes: Vec<u8>,
        peer: usize,
        tag: c_int,
    ) -> Result<Letter, MpiError> {
        // SAFETY: the letter owns the bytes, does not touch them before it is done, and leaks them if it is dropped before.
        let slot = unsafe { library.start_send(bytes.as_ptr().cast(), bytes.len(), peer, tag)? };
        Ok(Letter { peer, bytes: ManuallyDrop::new(bytes), slot, done: false })
    }

    /// Starts to receive a message that [`Library::probe`] has found.
    pub(super) fn receive(
        library: &Library,
        bytes: usize,
        peer: usize,
        tag: c_int,
    ) -> Result<Letter, MpiError> {
        let mut room = vec![0; bytes];
        // SAFETY: as in `send`; a vector's memory stays where it is when the vector moves.
        let slot = unsafe { library.start_receive(room.as_mut_ptr().cast(), bytes, peer, tag)? };
        Ok(Letter { peer, bytes: ManuallyDrop::new(room), slot, done: false })
    }

    /// Whether the last look has found it sent or received.
    pub(super) fn landed(&mut self, library: &Library) -> bool {
        if !self.done && library.is_done(&self.slot) {
            library.forget(&self.slot);
            self.done = true;
        }
        self.done
    }

    /// What was received.
    ///
    /// # Panics
    /// Unless it has landed.
    pub(super) fn into_bytes(mut self) -> Vec<u8> {
        assert!(self.done, "a letter is read before it has come");
        std::mem::take(&mut self.bytes)
    }
}

impl Drop for Letter {
    fn drop(&mut self) {
        if self.done {
            // SAFETY: dropped once; MPI is done with the bytes.
            unsafe { ManuallyDrop::drop(&mut self.bytes) };
        }
    }
}

/// Messages are cut far below this.
fn length(bytes: usize) -> c_int {
    c_int::try_from(bytes).expect("a message is shorter than 2 GiB")
}

/// # Safety
/// MPI is initialised, or about to be.
unsafe fn checked(call: &'static str, code: c_int) -> Result<(), MpiError> {
    if code == ffi::MPI_SUCCESS as c_int {
        return Ok(());
    }
    // No library's limit is longer.
    let (mut text, mut length) = ([0u8; 2048], 0);
    // SAFETY: the text has room for the longest that the library writes; it sets the length.
    let told = unsafe { ffi::MPI_Error_string(code, text.as_mut_ptr().cast::<c_char>(), &mut length) };
    let reason = match told == ffi::MPI_SUCCESS as c_int {
        true => String::from_utf8_lossy(&text[..length.clamp(0, 2048) as usize]).into_owned(),
        false => format!("error {code}"),
    };
    Err(MpiError { peer: None, call, reason })
}
