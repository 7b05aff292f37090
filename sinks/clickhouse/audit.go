package clickhouse

import (
	"context"
	"fmt"

	"github.com/ClickHouse/clickhouse-go/v2/lib/driver"
)

// AuditRow is what Audit found in one table.
type AuditRow struct {
	Table string
	// Rows there are, and different places (topic, partition, offset) among them: equal, or something was inserted twice.
	Rows, Places uint64
}

// Exact reports whether nothing was inserted twice.
func (a AuditRow) Exact() bool { return a.Rows == a.Places }

// Audit counts every table that holds events. It reads three columns of the whole history: for operators and tests, not for every minute.
func Audit(ctx context.Context, conn driver.Conn) ([]AuditRow, error) {
	tables := []string{"events"}
	for _, k := range kindTables {
		tables = append(tables, k.table)
	}
	all := make([]AuditRow, 0, len(tables))
	for _, t := range tables {
		row := AuditRow{Table: t}
		if err := conn.QueryRow(ctx, "SELECT count(), uniqExact(topic, partition, offset) FROM "+t).Scan(&row.Rows, &row.Places); err != nil {
			return nil, fmt.Errorf("audit %s: %w", t, err)
		}
		all = append(all, row)
	}
	return all, nil
}
