//go:build race

package router_test

// raceDetector says that everything takes ten times as long and some more memory.
const raceDetector = true
