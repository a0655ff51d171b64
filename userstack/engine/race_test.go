// SPDX-License-Identifier: Apache-2.0

//go:build race

package engine_test

// raceDetector says that sync.Pool drops some of what it is given.
const raceDetector = true
