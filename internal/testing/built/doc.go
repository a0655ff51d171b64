// SPDX-License-Identifier: Apache-2.0

// Package built builds programs of this module for tests. It keeps them in the folder bin/built of the module, so they are linked
// once, and not once for each package of a run.
package built
