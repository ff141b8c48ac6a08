//! What communication threads tell each other besides data, and its form as bytes.

use crate::comm::{Call, Group, HostOperation, Operation, Tag};

/// One message between communication threads.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum Word {
    /// The sender has started a call that the receiver takes part in.
    Started(Call),
    /// To rank 0: the sender has come to a meeting of all ranks, with its value.
    Come(Meeting, Vec<u8>),
    /// From rank 0: all have come, and this is what the receiver gets.
    Met(Vec<u8>),
    /// The sender lives, and the rank that it waits for, if it does.
    Alive(Option<usize>),
    /// The run has failed because of this rank.
    Failed(usize, String),
}

/// What all ranks meet for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Meeting {
    /// A call of the rank.
    Call(HostOperation),
    /// The end of a run that went well.
    End,
}

const OPERATIONS: [Operation; 5] = [
    Operation::AllReduceSum,
    Operation::AllGather,
    Operation::ReduceScatterSum,
    Operation::Send,
    Operation::Receive,
];

const MEETINGS: [Meeting; 4] = [
    Meeting::Call(HostOperation::Gather),
    Meeting::Call(HostOperation::Broadcast),
    Meeting::Call(HostOperation::Barrier),
    Meeting::End,
];

impl Word {
    /// As bytes: a letter for the kind, numbers of eight bytes, then text or values.
    pub(super) fn encode(&self) -> Vec<u8> {
        match self {
            Word::Started(Call::Collective { operation, group, tag, bytes }) => {
                let Group { first, size, stride } = *group;
                let numbers = [code(&OPERATIONS, operation), first as u64, size as u64, stride as u64];
                pack(b'c', &[&numbers[..], &[u64::from(tag.0), *bytes as u64]].concat(), &[])
            }
            Word::Started(Call::Transfer { from, to, tag, bytes }) => {
                pack(b't', &[*from as u64, *to as u64, u64::from(tag.0), *bytes as u64], &[])
            }
            Word::Started(Call::Host(_)) => unreachable!("a call for host values is told by its meeting"),
            Word::Come(meeting, value) => pack(b'm', &[code(&MEETINGS, meeting)], value),
            Word::Met(value) => pack(b'M', &[], value),
            Word::Alive(waiting_for) => pack(b'a', &[waiting_for.map_or(u64::MAX, |rank| rank as u64)], &[]),
            Word::Failed(rank, reason) => pack(b'f', &[*rank as u64], reason.as_bytes()),
        }
    }

    /// Reads what [`Word::encode`] has written; nothing for anything else.
    pub(super) fn decode(bytes: &[u8]) -> Option<Word> {
        let (kind, mut rest) = bytes.split_first()?;
        let mut number = || -> Option<u64> {
            let (number, behind) = rest.split_first_chunk()?;
            rest = behind;
            Some(u64::from_le_bytes(*number))
        };
        Some(match kind {
            b'c' => {
                let operation = *OPERATIONS.get(number()? as usize)?;
                let group =
                    Group { first: small(number()?)?, size: small(number()?)?, stride: small(number()?)? };
                let (tag, bytes) = (Tag(small(number()?)?), number()? as usize);
                Word::Started(Call::Collective { operation, group, tag, bytes })
            }
            b't' => {
                let (from, to) = (number()? as usize, number()? as usize);
                let (tag, bytes) = (Tag(small(number()?)?), number()? as usize);
                Word::Started(Call::Transfer { from, to, tag, bytes })
            }
            b'm' => {
                let meeting = *MEETINGS.get(number()? as usize)?;
                Word::Come(meeting, rest.to_vec())
            }
            b'M' => Word::Met(rest.to_vec()),
            b'a' => Word::Alive(Some(number()?).filter(|rank| *rank != u64::MAX).map(|rank| rank as usize)),
            b'f' => {
                let rank = number()? as usize;
                Word::Failed(rank, String::from_utf8_lossy(rest).into_owned())
            }
            _ => return None,
        })
    }
}

fn pack(kind: u8, numbers: &[u64], rest: &[u8]) -> Vec<u8> {
    let mut bytes = vec![kind];
    bytes.extend(numbers.iter().flat_map(|number| number.to_le_bytes()));
    bytes.extend_from_slice(rest);
    bytes
}

fn code<T: PartialEq>(all: &[T], one: &T) -> u64 {
    all.iter().position(|other| other == one).expect("every value is on the list") as u64
}

fn small(number: u64) -> Option<u32> {
    number.try_into().ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_word_comes_as_it_was_sent() {
        let group = Group { first: 9, size: 3, stride: 4 };
        let (tag, bytes) = (Tag(u32::MAX), 1 << 40);
        let mut words = vec![
            Word::Started(Call::Transfer { from: 3, to: 70_000, tag, bytes }),
            Word::Met(Vec::new()),
            Word::Met(b"value".to_vec()),
            Word::Alive(None),
            Word::Alive(Some(0)),
            Word::Failed(5, "panicked: Größe".to_owned()),
        ];
        let started = |operation| Word::Started(Call::Collective { operation, group, tag, bytes });
        words.extend(OPERATIONS.map(started));
        words.extend(MEETINGS.map(|meeting| Word::Come(meeting, vec![1, 2])));
        for word in words {
            assert_eq!(Word::decode(&word.encode()), Some(word));
        }
    }

    #[test]
    fn what_is_no_word_is_nothing() {
        let short = &Word::Started(Call::Transfer { from: 3, to: 7, tag: Tag(1), bytes: 4 }).encode()[..12];
        for bytes in [&b""[..], b"x", b"a\0", b"m\xff\0\0\0\0\0\0\0", short] {
            assert_eq!(Word::decode(bytes), None, "{bytes:?}");
        }
    }
}
