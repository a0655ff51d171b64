// SPDX-License-Identifier: Apache-2.0

// Package plain makes the texts of errors such as people read them: the names of Go packages say nothing to them.
package plain
