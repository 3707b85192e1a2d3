// Package gap decides what happens between two turns of a conversation: whether P is prepared for
// the next one now, later or not at all, and in which order the P calls that do so are made.
//
// A Habit learns from a kind of traffic how likely a turn is followed by another one, and when. A
// Survival learns how long P keeps what it was given. Decide weighs what a return would save against
// what it costs others. A Queue holds the returns of one P until they may start: turns go first,
// and of the returns the shortest.
//
// Everything here is pure: times are given, on any clock that does not jump, and nothing is safe for
// concurrent use.
package gap
