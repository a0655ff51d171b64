// SPDX-License-Identifier: Apache-2.0

// Package typo finds the word that somebody meant who mistyped it: a command, a flag, a value
// out of a few, or the name of an object.
package typo
