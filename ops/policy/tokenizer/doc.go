// Package tokenizer turns text into a model's token ids and back, from the vocabulary that its GGUF file holds.
//
// In: the metadata of a GGUF file; text. Out: ids; bytes of ids; what ends a response.
//
// Invariants:
//   - Encode reads text as text: what looks like a special token in it does not become one. Only EncodeSpecial, for text that we wrote
//     ourselves, makes special tokens.
//   - Decode(Encode(s)) is s, but for bytes that have no token in the vocabulary: they vanish (some models lack a few control bytes).
//   - The time is O(n log n) in the text's length, whatever the text.
//   - No text, valid UTF-8 or not, makes it fail. (llama.cpp's own tokenizer throws on bytes without a token, which is why it is not used.)
//
// Read first: tokenizer.go (New, Encode, Decode), then special.go, pretokenize.go (how text is cut into words before merging), bpe.go and
// sentencepiece.go (the two ways of merging), stream.go (pieces into whole characters).
package tokenizer
