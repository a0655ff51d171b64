// SPDX-License-Identifier: Apache-2.0

//go:build !race

package cli

// raceDetector says that the program starts more slowly.
const raceDetector = false
