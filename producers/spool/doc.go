// Package spool is the journal between the gateway and the log: what it has taken survives the death of the process, and reaches the log in order.
//
// In: records, from many goroutines (Append). Out: the same records, appended to a schemas.Appender in the order of the journal (Run), and dead
// letters for those that the log refuses for good.
//
// Invariants:
//   - Append returns nil only when the records are in a file: kill -9 of the process loses none of them. A loss of power may cost those of
//     the last two Config.SyncEvery that the log does not have (SyncSoon), or none (SyncAlways).
//   - The log gets the records in journal order. A batch is sent again until it is acknowledged, and the next one only then. After a crash what was
//     acknowledged in the last second is sent again: ids make that harmless.
//   - Memory is bounded: Config.MemoryBytes for records on their way into a file, Config.BatchBytes and one record for those on their way out. What
//     waits in between is on disk only; while Run keeps up it is read back from the page cache.
//   - Disk is bounded: Config.MaxBytes, then Append returns ErrFull. It works again as soon as there is room.
//   - No file stops it: a damaged place is skipped, loudly, and the file that has it is kept aside, for a person to look at and delete.
//
// The folder holds segments (16 hexadecimal digits and .spool), files set aside (.bad), how far the log has acknowledged (position), and a lock.
//
// Read spool.go first (Open, Append, Close), then write.go (into the files), drain.go (out of them), segment.go and frame.go (what is in them).
package spool
