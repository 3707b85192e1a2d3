package main

// commonPrefix is the number of leading tokens that a and b share.
func commonPrefix(a, b []int32) int {
	n := min(len(a), len(b))
	for i := range n {
		if a[i] != b[i] {
			return i
		}
	}
	return n
}

// repeatedTokens is how many leading tokens of prompt, in whole blocks, were there before: in one earlier prompt
// together with its reply. At least one token of a prompt is always computed.
func repeatedTokens(prompt, earlierPrompt, earlierReply []int32, blockSize int) int {
	n := commonPrefix(prompt, earlierPrompt)
	if n == len(earlierPrompt) {
		n += commonPrefix(prompt[n:], earlierReply)
	}
	n = min(n, len(prompt)-1)
	return max(n, 0) / blockSize * blockSize
}

// wrongTokens counts the positions at which two answers differ, missing and surplus tokens included.
func wrongTokens(got, want []int32) int {
	wrong := max(len(got), len(want)) - min(len(got), len(want))
	for i := range min(len(got), len(want)) {
		if got[i] != want[i] {
			wrong++
		}
	}
	return wrong
}
