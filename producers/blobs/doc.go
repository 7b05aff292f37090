// Package blobs keeps what is too large or not text (screenshots, files) outside the log, in a directory, by content.
//
// In: bytes. Out: their SHA-256, which a Blob in an event carries, and the bytes again. The name of a file is its hash, two levels of
// folders deep, so that the same content is kept once and any copy of the directory is as good as the original.
//
// Invariants:
//   - A blob that Put returned is durable: file and folder entry are synced before the rename is reported.
//   - A file under its final name is whole: it is written beside and renamed. Open checks the content against its name while it is read.
//   - The sum of all blobs stays below Config.MaxBytes; beyond it Put answers ErrFull and nothing is deleted by
//     itself: events refer to what is there. Delete is for owners who know that nothing needs a blob any more, such as the weights of an old policy version.
//
// Read directory.go.
package blobs
