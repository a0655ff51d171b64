// SPDX-License-Identifier: Apache-2.0

package retry

import "errors"

// wholeTries is how often [Whole] reads a list that changes each time.
const wholeTries = 20

// Whole returns the list that read reads. The kernel says changed of a list that has changed while it was read, as that of the devices
// when one comes or goes, and that may lack some. Such a list is read again. One that changed each time is returned as it is, with
// changed: whoever cannot do with less sees an error.
func Whole[T any](changed error, read func() ([]T, error)) (list []T, err error) {
	for range wholeTries {
		if list, err = read(); !errors.Is(err, changed) {
			break
		}
	}
	return list, err
}
