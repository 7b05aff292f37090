package clickhouse

import (
	"context"
	"errors"
	"fmt"
	"strings"

	"github.com/ClickHouse/clickhouse-go/v2/lib/driver"
)

// table is the rows of one table in one batch, column by column: the driver takes a column in one call, without a box for each value.
type table struct {
	name    string
	columns []column
	rows    int
	query   string
}

// column is the values of one column.
type column interface {
	name() string
	size() int
	// send appends the values of the rows from to to-1.
	send(b driver.BatchColumn, from, to int) error
	reset()
}

// cells is a column that the driver takes as a whole.
type cells[T any] struct {
	title string
	v     []T
}

func newCells[T any](t *table, title string) *cells[T] {
	c := &cells[T]{title: title}
	t.columns = append(t.columns, c)
	return c
}

func (c *cells[T]) add(v T)                                       { c.v = append(c.v, v) }
func (c *cells[T]) name() string                                  { return c.title }
func (c *cells[T]) size() int                                     { return len(c.v) }
func (c *cells[T]) send(b driver.BatchColumn, from, to int) error { return b.Append(c.v[from:to]) }
func (c *cells[T]) reset()                                        { clear(c.v); c.v = c.v[:0] }

// lists is a column of arrays or maps: the driver is fastest when it gets those row by row.
type lists[T any] struct{ cells[T] }

func newLists[T any](t *table, title string) *lists[T] {
	c := &lists[T]{cells[T]{title: title}}
	t.columns = append(t.columns, c)
	return c
}

func (c *lists[T]) send(b driver.BatchColumn, from, to int) error {
	for _, v := range c.v[from:to] {
		if err := b.AppendRow(v); err != nil {
			return err
		}
	}
	return nil
}

func (t *table) reset() {
	for _, c := range t.columns {
		c.reset()
	}
	t.rows = 0
}

// errRefused marks an error that the rows themselves cause: trying again cannot help.
var errRefused = errors.New("clickhouse refuses the rows")

// insert sends the rows to a table (its own, or one of the same columns), packet rows at a time: the driver's buffers stay small and are used
// again. The server squashes the packets (see insertContext), so that they are one block all the same, all of it or none. Nothing is sent for no
// rows.
func (t *table) insert(ctx context.Context, conn driver.Conn, into string, packet int) error {
	if t.rows == 0 {
		return nil
	}
	if t.query == "" {
		names := make([]string, len(t.columns))
		for i, c := range t.columns {
			names[i] = "`" + c.name() + "`"
		}
		t.query = "(" + strings.Join(names, ", ") + ")"
	}
	for _, c := range t.columns {
		if c.size() != t.rows {
			return fmt.Errorf("%s: column %s has %d values for %d rows: %w", t.name, c.name(), c.size(), t.rows, errRefused)
		}
	}
	batch, err := conn.PrepareBatch(ctx, "INSERT INTO "+into+" "+t.query)
	if err != nil {
		return fmt.Errorf("insert into %s: %w", into, err)
	}
	for from := 0; from < t.rows; from += packet {
		if from > 0 {
			if err := batch.Flush(); err != nil {
				return errors.Join(fmt.Errorf("insert into %s: %w", into, classify(err)), batch.Abort())
			}
		}
		for i, c := range t.columns {
			if err := c.send(batch.Column(i), from, min(from+packet, t.rows)); err != nil {
				return errors.Join(fmt.Errorf("insert into %s: column %s: %w: %w", into, c.name(), err, errRefused), batch.Abort())
			}
		}
	}
	if err := batch.Send(); err != nil {
		return fmt.Errorf("insert into %s: %w", into, classify(err))
	}
	return nil
}
